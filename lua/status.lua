--@ state
-- What waits under one key. Writes nothing.
-- KEYS  state, line, due, room, claims, started, override
-- ARGV  1 now_us ('' = the server's clock)   2 override ('' = read the key)
-- Reply integers: now_us, waiting, parked, first-seen time of the oldest (0 = none), pause_us
local now = clock(ARGV[1])
local oldest = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
local _, pause = in_force(KEYS[7], ARGV[2], now, '')
return { now, redis.call('ZCARD', KEYS[2]), redis.call('HLEN', KEYS[4]), tonumber(oldest[2] or 0),
  pause }
