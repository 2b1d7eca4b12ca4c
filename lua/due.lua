--@ state
-- Tell which rooms to visit now. Each room is handed to one releaser. Others see it again after a while, in case that
-- releaser died.
-- KEYS  the index of rooms of a broker: state key -> when to visit, microseconds; and (not on a Cluster) all brokers
-- ARGV  1 now_us ('' = the server's clock)   2 how many at most   3 for how long they are handed out, microseconds
--       4 the broker   5 for how long the broker counts as served from now on, microseconds (0: no change)
-- Reply: now_us, when the next visit is due (0 = no rooms), the brokers that are served (one text, parted by
--       spaces), then the state keys of those due.
local now = clock(ARGV[1])
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', text(now), 'LIMIT', 0, ARGV[2])
for _, line in ipairs(due) do redis.call('ZADD', KEYS[1], text(now + ARGV[3]), line) end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if tonumber(ARGV[5]) > 0 then redis.call('ZADD', KEYS[2], text(now + ARGV[5]), ARGV[4]) end
local served = KEYS[2] and redis.call('ZRANGEBYSCORE', KEYS[2], text(now), '+inf') or {}
return { now, tonumber(first[2] or 0), table.concat(served, ' '), unpack(due) }
