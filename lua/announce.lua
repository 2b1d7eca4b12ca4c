--@ state
-- Limits are in use: remember them for a while, and forget those that nobody has announced for long.
-- KEYS  limits (ordered set: name and algorithm, by the time until which they are known)
-- ARGV  1 now_us ('' = the server's clock)   2 for how long, microseconds   then the members
local now, slack = clock(ARGV[1])
local until_us = text(now + ARGV[2])
for i = 3, #ARGV do redis.call('ZADD', KEYS[1], until_us, ARGV[i]) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', text(now))
redis.call('PEXPIRE', KEYS[1], text(math.ceil(ARGV[2] / 1000) + slack))
return 1
