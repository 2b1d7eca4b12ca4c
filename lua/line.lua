-- Prelude of scripts that look at a line: the tasks waiting under one key, in order.
-- l.line     sorted set: task id -> first-seen time, microseconds (the order)
-- l.due      sorted set: task id -> promised wake-up + grace, microseconds, of those not parked;
--            one whose time has passed belongs to a task that died, was revoked or expired
-- l.room     hash: task id -> parked message
-- l.claims   sorted set: task id -> when it was last let go, microseconds
-- l.started  hash, of tasks let go twice: task id -> LET_AGAIN, then '<copy that started>:<when>'

local PURGE = 16           -- tickets removed by one call at most: the cost of a call stays bounded
local IDLE_US = 5000       -- a cell idle for so long goes to whoever asks
local FREE_US = 20000      -- so shortly before it falls due, to whoever can sleep until then
local NEWCOMER_SHARE = 5   -- a newcomer sleeps this part of what a woken task may
local PASS_US = 1000000    -- a woken task passes at most so much time's worth of places
local LET_AGAIN = '0'

-- a line: its state (`load`), and the names of its other keys
local function line_at(keys, k)
  local l = load(keys[(k or 0) + 1])
  l.line, l.due, l.room, l.claims, l.started = unpack(keys, (k or 0) + 2, (k or 0) + 6)
  return l
end

-- drop dead tickets
local function purge(l, now)
  l.count = redis.call('ZCARD', l.line)
  if l.count == 0 then l.units = 0 return end
  local dead = redis.call('ZRANGEBYSCORE', l.due, '-inf', text(now), 'LIMIT', 0, PURGE)
  local left = l.count
  if #dead > 0 then
    redis.call('ZREM', l.due, unpack(dead))
    redis.call('ZREM', l.claims, unpack(dead))
    left = left - redis.call('ZREM', l.line, unpack(dead))
  end
  l.units = math.max(math.floor(l.units * left / l.count), left)
  l.count = left
end

local function leave(l, id)
  if redis.call('ZREM', l.line, id) == 0 then return end
  redis.call('ZREM', l.due, id)
  redis.call('HDEL', l.room, id)
  redis.call('ZREM', l.claims, id)
  l.count = math.max(l.count - 1, 0)
  l.units = l.count > 0 and math.max(l.units - l.cost, l.count) or 0
end

-- how long the keys of a line must live, milliseconds; 0: for ever, somebody is parked
local function lifetime(l)
  if redis.call('EXISTS', l.room) == 1 then return 0 end
  return math.max(redis.call('PTTL', l.due), 1000)
end

local function keep(key, ttl_ms)
  if ttl_ms == 0 then redis.call('PERSIST', key)
  elseif redis.call('PTTL', key) < ttl_ms then redis.call('PEXPIRE', key, text(ttl_ms)) end
end

-- take or keep a place, with a deadline
local function join(l, id, seen, deadline, ttl_ms)
  if redis.call('ZADD', l.line, 'NX', text(seen), id) == 1 then
    l.count, l.units = l.count + 1, l.units + l.cost
  end
  redis.call('HDEL', l.room, id)
  redis.call('ZADD', l.due, text(deadline), id)
  keep(l.due, ttl_ms)
  keep(l.line, lifetime(l))
end

-- take or keep a place, and leave the message here: no deadline, no expiry, until it is let go
local function park(l, id, seen, message)
  if redis.call('ZADD', l.line, 'NX', text(seen), id) == 1 then
    l.count, l.units = l.count + 1, l.units + l.cost
  end
  redis.call('ZREM', l.due, id)
  redis.call('ZREM', l.claims, id)
  redis.call('HSET', l.room, id, message)
  keep(l.line, 0)
end

-- after somebody left, or was let go: with nobody parked, the keys may expire again (the state not
-- before its bucket is full)
local function settle_expiry(l, now, slack)
  if redis.call('EXISTS', l.room) == 1 then return end
  local ttl = lifetime(l)
  if redis.call('EXISTS', l.line) == 1 then redis.call('PEXPIRE', l.line, text(ttl)) end
  redis.call('PEXPIRE', l.key, text(math.max(ttl, life(l, now, slack) + 1)))
end

-- A message may be let go twice (after a crash in between). This copy is one too many if another one
-- started after this one was let go; one let go later belongs to a retry of the same id.
local function started_already(l, id, copy)
  local other, at = string.match(redis.call('HGET', l.started, id) or '', '^(%d+):(%d+)$')
  return other and other ~= copy and tonumber(copy) <= tonumber(at)
end

local function note_start(l, id, copy, now)
  if redis.call('HEXISTS', l.started, id) == 1 then
    redis.call('HSET', l.started, id, copy .. ':' .. text(now))
  end
end
