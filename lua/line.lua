-- Prelude of scripts that look at a line: the tasks waiting under one key, in order.
--   line       sorted set: ticket id -> first-seen time, microseconds (the order)
--   deadlines  sorted set: ticket id -> promised wake-up + grace, microseconds
-- A ticket whose deadline has passed belongs to a task that died, was revoked or expired.

local PURGE = 16         -- tickets removed by one call at most: the cost of a call stays bounded
local IDLE_US = 5000     -- a cell idle for so long goes to whoever asks
local NEWCOMER_SHARE = 5 -- a newcomer sleeps this part of what a woken task may: its slot is for others
local PASS_US = 1000000  -- a woken task passes at most so much time's worth of places

-- drop dead tickets; returns how many wait and their units
local function purge(line, deadlines, now, units)
  local count = redis.call('ZCARD', line)
  if count == 0 then return 0, 0 end
  local dead = redis.call('ZRANGEBYSCORE', deadlines, '-inf', string.format('%.0f', now), 'LIMIT', 0, PURGE)
  if #dead == 0 then return count, math.max(units, count) end
  redis.call('ZREM', deadlines, unpack(dead))
  local left = count - redis.call('ZREM', line, unpack(dead))
  return left, math.max(math.floor(units * left / count), left)
end

local function leave(line, deadlines, id, count, units, cost)
  if redis.call('ZREM', line, id) == 0 then return count, units end
  redis.call('ZREM', deadlines, id)
  if count <= 1 then return 0, 0 end
  return count - 1, math.max(units - cost, count - 1)
end

-- keep a key at least ttl_ms; returns what it has then
local function keep(key, ttl_ms)
  local has = redis.call('PTTL', key)
  if has >= ttl_ms then return has end
  redis.call('PEXPIRE', key, string.format('%.0f', ttl_ms))
  return ttl_ms
end

local function join(line, deadlines, id, seen, deadline, count, units, cost, ttl_ms)
  if redis.call('ZADD', line, 'NX', string.format('%.0f', seen), id) == 1 then
    count, units = count + 1, units + cost
  end
  redis.call('ZADD', deadlines, string.format('%.0f', deadline), id)
  keep(line, ttl_ms)
  return count, units, keep(deadlines, ttl_ms)
end
