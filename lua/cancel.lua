--@ gcra line
-- Take a waiting task out of its line, and its parked message out of the room.
-- KEYS  state, line, due, room, claims
-- ARGV  1 task id   2 '1' = only if it is parked
-- Reply integer: 1 if it was there.
local l = {}
l.state, l.line, l.due, l.room, l.claims = unpack(KEYS)
if ARGV[2] == '1' and redis.call('HEXISTS', l.room, ARGV[1]) == 0 then return 0 end
local tat, ticks, units, ahead_us = read_state(l.state)
l.count = redis.call('ZCARD', l.line)
l.units, l.cost = units, l.count > 0 and math.floor(units / l.count) or 0
if not redis.call('ZSCORE', l.line, ARGV[1]) then return 0 end
leave(l, ARGV[1])
if units > 0 then
  redis.call('SET', l.state, string.format('%.0f:%.0f:%.0f:%.0f', tat, ticks, l.units, ahead_us), 'KEEPTTL')
end
return 1
