--@ state line room
-- What becomes of a message in quarantine: back to its place to be tried again, or dropped.
-- KEYS  state, line, tickets, lanes, due, room, started, bad
-- ARGV  1 now_us ('' = the server's clock)   2 ticket   3 'retry' or 'drop'   4 our broker
-- Reply integer: 1 if it was there.
local now = clock(ARGV[1])
local l, id = room_at(KEYS), ARGV[2]
local lane, place, cost, message = string.match(redis.call('HGET', l.bad, id) or '', '^([^:]+):(%d+):(%d+):[^\n]*\n(.*)$')
if redis.call('HDEL', l.bad, id) == 0 then return 0 end
if ARGV[3] == 'drop' or not lane then return 1 end
l.count = redis.call('ZCARD', l.line)
local t = { lane = lane, place = tonumber(place), cost = tonumber(cost), let_go_at = 0, tries = 0, not_before = 0 }
if lane_at(l, lane, now).broker == '' then l.by_lane[lane].broker = ARGV[4] end
park(l, id, t, ticket_at(l, id), message, now)
write_lanes(l)
expire(l, 0)
save(l, 0)
return 1
