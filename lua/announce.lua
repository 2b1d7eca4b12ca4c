--@ state
-- Remember for a while that limits are in use, and forget limits that were not announced for a long time.
-- KEYS  limits (sorted set: name and algorithm, by the time until which they are known)
-- ARGV  1 now_us ('' = the server's clock)   2 for how long to remember them, microseconds   then the members
local now, slack = clock(ARGV[1])
local until_us = text(now + ARGV[2])
for i = 3, #ARGV do redis.call('ZADD', KEYS[1], until_us, ARGV[i]) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', text(now))
redis.call('PEXPIRE', KEYS[1], text(math.ceil(ARGV[2] / 1000) + slack))
return 1
