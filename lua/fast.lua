-- Prelude of acquire.lua, before anything else is defined: the common case, in which one limit is
-- asked by a newcomer, nobody waits (the state is a plain number) and nothing is configured.
-- KEYS and ARGV of acquire.lua. Reply integers: 1 admitted or 0 denied, now_us, former tat_us
-- (0 = none). All else falls through.
local plain = redis.call('GET', KEYS[1])
local plain_tat = not plain and 0 or tonumber(plain)
if ARGV[2] == 'fast' and plain_tat and plain_tat >= 0 and not redis.call('GET', KEYS[7]) then
  local now, ttl_slack = ARGV[1], 0
  if now == '' then
    local t = redis.call('TIME')
    now = t[1] * 1000000 + t[2]
  else
    now, ttl_slack = tonumber(now), 60000
  end
  local capacity = tonumber(ARGV[6])
  local tat = math.max(math.min(plain_tat, now + capacity), now) + ARGV[4] * ARGV[7]
  if tat - capacity <= now then
    redis.call('SET', KEYS[1], string.format('%.0f', tat), 'PX', math.ceil((tat - now) / 1000) + ttl_slack)
    return { 1, now, plain_tat }
  end
  if #ARGV == 8 and plain_tat <= now + capacity then return { 0, now, plain_tat } end
end
