--@ state line room
-- Put a message in quarantine back to its place, to be tried again, or drop it.
-- KEYS  state, line, tickets, lanes, due, room, started, bad
-- ARGV  1 now_us ('' = the server's clock)   2 ticket   3 'retry' or 'drop'   4 the broker if the entry names none
-- Reply: 1 if the message was there (else 0), and the broker for which it is parked again ('' after 'drop').
local now = clock(ARGV[1])
local l, id = room_at(KEYS), ARGV[2]
local lane, place, cost, broker, message =
  string.match(redis.call('HGET', l.bad, id) or '', '^([^:]+):(%d+):(%d+):%d+:([^:]*):[^\n]*\n(.*)$')
if ARGV[3] == 'drop' then return { redis.call('HDEL', l.bad, id), '' } end
if not lane then return { 0, '' } end -- not there, or foreign data, which can only be dropped
redis.call('HDEL', l.bad, id)
l.count = redis.call('ZCARD', l.line)
local t = { lane = lane, place = tonumber(place), cost = tonumber(cost), let_go_at = 0, tries = 0, not_before = 0 }
-- The line may have expired since. If it has not, the lane's own broker counts, because its tasks may have been
-- adopted.
local its = lane_at(l, lane, now)
if its.broker == '' then its.broker, its.changed = broker ~= '' and broker or ARGV[4], true end
park(l, id, t, ticket_at(l, id), message, now)
write_lanes(l)
expire(l, 0)
save(l, 0)
return { 1, its.broker }
