--@ state * line room
-- What becomes of a message in quarantine: back to its place to be tried again, or dropped.
-- KEYS  state, line, tickets, lanes, due, room, started, bad
-- ARGV  1 now_us ('' = the server's clock)   2 ticket   3 'retry' or 'drop'   4 the broker of one that says none
-- Reply: 1 if it was there; and for which broker it is parked again ('' after 'drop').
local now = clock(ARGV[1])
local l, id = room_at(KEYS), ARGV[2]
local lane, place, cost, broker, message =
  string.match(redis.call('HGET', l.bad, id) or '', '^([^:]+):(%d+):(%d+):%d+:([^:]*):[^\n]*\n(.*)$')
if ARGV[3] == 'drop' then return { redis.call('HDEL', l.bad, id), '' } end
if not lane then return { 0, '' } end -- or foreign: it can only be dropped
redis.call('HDEL', l.bad, id)
l.count = redis.call('ZCARD', l.line)
local t = { lane = lane, place = tonumber(place), cost = tonumber(cost), let_go_at = 0, tries = 0, not_before = 0 }
-- the line may have expired since; and the lane's own word counts, for its tasks may have been adopted
local its = lane_at(l, lane, now)
if its.broker == '' then its.broker, its.changed = broker ~= '' and broker or ARGV[4], true end
park(l, id, t, ticket_at(l, id), message, now)
write_lanes(l)
expire(l, 0)
save(l, 0)
return { 1, its.broker }
