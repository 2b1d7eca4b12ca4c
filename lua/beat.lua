--@ state
-- A worker is there (or leaves): how many processes share the limits, by those who said so lately.
-- KEYS  the registry: a sorted set, "<worker>:<its processes>" -> until when that holds, microseconds
-- ARGV  1 now_us ('' = the server's clock)   2 member   3 ttl_us (0 = it leaves)
-- Reply integers: all processes of all workers, now_us.
local now = clock(ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', text(now))
if tonumber(ARGV[3]) > 0 then
  redis.call('ZADD', KEYS[1], text(now + ARGV[3]), ARGV[2])
  redis.call('EXPIRE', KEYS[1], 86400)
else
  redis.call('ZREM', KEYS[1], ARGV[2])
end
local sum = 0
for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  sum = sum + tonumber(string.match(member, ':(%d+)$') or 0)
end
return { sum, now }
