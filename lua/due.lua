--@ state
-- Which rooms to visit now.
-- KEYS  the index of rooms: state key -> when to visit, microseconds
-- ARGV  1 now_us ('' = the server's clock)   2 how many at most
-- Reply: now_us, when the next visit is due (0 = no rooms), then the state keys of those due.
local now = clock(ARGV[1])
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', text(now), 'LIMIT', 0, ARGV[2])
return { now, tonumber(first[2] or 0), unpack(due) }
