--@ state line room
-- Tell how many tasks wait under one key. Writes nothing.
-- KEYS  state, line, tickets, lanes, due, room, started, bad, override
-- ARGV  1 now_us ('' = the server's clock)   2 override ('' = read the key)
-- Reply integers: now_us, waiting, parked, first-seen time of the oldest (0 = none), pause_us, in quarantine, the
--       margin in force for limits with an automatic margin (thousandths of the period)
local now = clock(ARGV[1])
local l, oldest = room_at(KEYS), math.huge
for name in pairs(lanes_of(l)) do
  local first = redis.call('ZRANGE', l.line, '[' .. name .. ':', '(' .. name .. ';', 'BYLEX', 'LIMIT', 0, 1)[1]
  oldest = math.min(oldest, first and tonumber(string.match(first, '^[^:]*:(%d+):')) or math.huge)
end
local _, pause, margin = in_force(KEYS[9], ARGV[2], now, '')
return { now, redis.call('ZCARD', l.line), redis.call('HLEN', l.room), oldest < math.huge and oldest or 0, pause,
  redis.call('HLEN', l.bad), math.max(margin, LEAST_MARGIN) }
