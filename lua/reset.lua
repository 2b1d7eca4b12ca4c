--@ state line
-- Make the bucket full again. Tasks that wait keep their places. Foreign values at the keys are dropped.
-- KEYS  state, line, tickets, lanes, due, room, started, override
-- Reply integer: 1 if anything was stored, 0 if the bucket was full already.
local kinds = { 'string', 'zset', 'hash', 'hash', 'zset', 'hash', 'hash', 'string' }
local function kind(key) return redis.call('TYPE', key).ok end
local known, l = pcall(line_at, KEYS)
local existed = redis.call('DEL', KEYS[1])
for i = 2, 8 do
  if kind(KEYS[i]) ~= kinds[i] then redis.call('DEL', KEYS[i]) end
end
local count = redis.call('ZCARD', KEYS[2])
if count > 0 then
  l = { key = KEYS[1], units = math.max(known and l.units or 0, count), due = KEYS[5], room = KEYS[6] }
  save(l, lifetime(l))
end
return existed
