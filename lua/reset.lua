--@ gcra
-- Make the bucket full again; those who wait keep their places. Also repairs a foreign value.
-- KEYS  state, line, deadlines
-- Reply integer: 1 if anything was stored, 0 if the bucket was full already.
local existed = redis.call('DEL', KEYS[1])
for i = 2, 3 do
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'zset' and kind ~= 'none' then redis.call('DEL', KEYS[i]) end
end
local count = redis.call('ZCARD', KEYS[2])
if count > 0 then write_state(KEYS[1], 0, 0, count, 0, math.max(redis.call('PTTL', KEYS[2]), 1)) end
return existed
