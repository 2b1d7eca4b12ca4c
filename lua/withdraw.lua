--@ state line
-- Take a task out of its line, and its message out of the room if it lies there.
-- KEYS  state, line, due, room, claims
-- ARGV  1 now_us ('' = the server's clock)   2 task id   3 '1' = only if it is parked
-- Reply integer: 1 if it was there.
local now, slack = clock(ARGV[1])
local l, id = line_at(KEYS), ARGV[2]
if ARGV[3] == '1' and redis.call('HEXISTS', l.room, id) == 0 then return 0 end
if not redis.call('ZSCORE', l.line, id) then return 0 end
l.count = redis.call('ZCARD', l.line)
l.cost = math.floor(l.units / l.count)
local units = l.units
leave(l, id)
if units > 0 then save(l) end
settle_expiry(l, now, slack)
return 1
