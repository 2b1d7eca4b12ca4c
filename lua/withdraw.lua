--@ gcra line
-- Take a task out of its line, and its message out of the room if it lies there.
-- KEYS  state, line, due, room, claims
-- ARGV  1 now_us ('' = the server's clock)   2 task id   3 '1' = only if it is parked
-- Reply integer: 1 if it was there.
local now, slack = clock(ARGV[1])
local l, id = {}, ARGV[2]
l.state, l.line, l.due, l.room, l.claims = unpack(KEYS)
if ARGV[3] == '1' and redis.call('HEXISTS', l.room, id) == 0 then return 0 end
if not redis.call('ZSCORE', l.line, id) then return 0 end
local tat, ticks, units, ahead_us = read_state(l.state)
l.count = redis.call('ZCARD', l.line)
l.units, l.cost = units, math.floor(units / l.count)
leave(l, id)
if units > 0 then keep_units(l, tat, ticks, ahead_us) end
settle_expiry(l, now, slack)
return 1
