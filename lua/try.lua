-- The common case, as cheap as a bare GCRA: one limit is asked by a newcomer, nobody waits (the state is
-- a TAT alone) and nothing is configured. All else is for acquire.lua, which then is asked next.
-- KEYS  state, override
-- ARGV  1 now_us ('' = the server's clock)   2 emission (microseconds)   3 capacity (microseconds)
--       4 cost (units)   5 '1' = who asks may wait: a denial needs its place, from acquire.lua
-- Reply integers: 1 admitted or 0 denied, now_us, former tat_us (0 = none); or -1 alone: ask acquire.lua
-- Keeps invariants 1 to 4 of gcra.py.
local value = redis.call('GET', KEYS[1])
local former = not value and 0 or string.sub(value, 1, 2) == '1:' and tonumber(string.sub(value, 3))
if not (former and former >= 0) or redis.call('GET', KEYS[2]) then return { -1 } end
local now, slack = ARGV[1], 0
if now == '' then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
else
  now, slack = tonumber(now), 60000 -- an injected clock does not move with the server's expiry
end
local capacity = tonumber(ARGV[3])
local tat = math.max(math.min(former, now + capacity), now) + ARGV[2] * ARGV[4]
if tat - capacity <= now then
  redis.call('SET', KEYS[1], string.format('1:%.0f', tat), 'PX', math.ceil((tat - now) / 1000) + slack)
  return { 1, now, former }
end
if ARGV[5] == '1' or former > now + capacity then return { -1 } end
return { 0, now, former }
