--@ state
-- After an outage: when do all processes ask again? The first one to notice sets the instant.
-- KEYS  where the instant is kept
-- ARGV  1 now_us ('' = the server's clock)   2 how far ahead it is set, microseconds
-- Reply integer: microseconds until then, 0 to ARGV[2]. A past, foreign or far one is set anew. It is
-- a write, and a script, as decisions are: what refuses those refuses this.
local now = clock(ARGV[1])
local kept = redis.call('TYPE', KEYS[1]).ok == 'string' and tonumber(redis.call('GET', KEYS[1]))
local left = kept and kept - now or 0
if left <= 0 or left > tonumber(ARGV[2]) then left = tonumber(ARGV[2]) end
redis.call('SET', KEYS[1], text(now + left), 'PX', math.ceil(ARGV[2] / 1000))
return left
