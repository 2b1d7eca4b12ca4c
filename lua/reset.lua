--@ gcra line
-- Make the bucket full again; those who wait keep their places. Also drops a foreign value.
-- KEYS  state, line, due, room, claims, started, override
-- Reply integer: 1 if anything was stored, 0 if the bucket was full already.
local kinds = { 'string', 'zset', 'zset', 'hash', 'zset', 'hash', 'string' }
local function kind(key) return redis.call('TYPE', key).ok end
local value = kind(KEYS[1]) == 'string' and redis.call('GET', KEYS[1]) or ''
local existed = redis.call('DEL', KEYS[1])
for i = 2, 7 do
  if kind(KEYS[i]) ~= kinds[i] then redis.call('DEL', KEYS[i]) end
end
local count = redis.call('ZCARD', KEYS[2])
if count > 0 then
  local units = tonumber(string.match(value, '^%d+:%d+:(%d+):%d+$')) or 0
  write_state(KEYS[1], 0, 0, math.max(units, count), 0, lifetime({ room = KEYS[4], due = KEYS[3] }))
end
return existed
