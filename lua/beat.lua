--@ state
-- Note that a worker is there (or leaves), and tell how many processes share the limits. The sum is stored, so that a
-- heartbeat costs the same however many workers there are.
-- KEYS  the registry: a sorted set, "<worker>:<its processes>" -> until when that holds, microseconds; and the sum
-- ARGV  1 now_us ('' = the server's clock)   2 member   3 ttl_us (0 = the worker leaves)
-- Reply integers: all processes of all workers, now_us, 1 if this member was not known (else 0).
local GONE = 32 -- one heartbeat drops at most so many workers
local now, new = clock(ARGV[1]), 0
local function processes(worker) return tonumber(string.match(worker, ':(%d+)$') or 0) end
local sum = tonumber(redis.call('GET', KEYS[2]))
if not sum then -- the sum was evicted or lost, so add it up
  sum = 0
  for _, worker in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do sum = sum + processes(worker) end
end
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', text(now), 'LIMIT', 0, GONE)) do
  sum = sum - redis.call('ZREM', KEYS[1], worker) * processes(worker)
end
if tonumber(ARGV[3]) > 0 then
  new = redis.call('ZADD', KEYS[1], text(now + ARGV[3]), ARGV[2])
  sum = sum + new * processes(ARGV[2])
  redis.call('EXPIRE', KEYS[1], 86400)
else
  sum = sum - redis.call('ZREM', KEYS[1], ARGV[2]) * processes(ARGV[2])
end
redis.call('SET', KEYS[2], text(sum), 'EX', 86400)
return { sum, now, new }
