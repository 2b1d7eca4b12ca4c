--@ state
-- Tell when all processes ask again after an outage. The first process that gets an answer sets this moment.
-- KEYS  the key of the moment
-- ARGV  1 now_us ('' = the server's clock)   2 how far ahead the moment is set, microseconds
-- Reply integer: microseconds until the moment, 0 to ARGV[2]. A value that is past, foreign or too far ahead is set
-- anew. Like a decision, this is a script that writes, so a server that refuses decisions refuses it as well.
local now = clock(ARGV[1])
local kept = redis.call('TYPE', KEYS[1]).ok == 'string' and tonumber(redis.call('GET', KEYS[1]))
local left = kept and kept - now or 0
if left <= 0 or left > tonumber(ARGV[2]) then left = tonumber(ARGV[2]) end
redis.call('SET', KEYS[1], text(now + left), 'PX', math.ceil(ARGV[2] / 1000))
return left
