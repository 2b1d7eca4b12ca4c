--@ gcra line
-- Claim the parked messages whose turn has come, under a lease.
-- KEYS  state, line, due, room, claims, started, override, and the index of rooms (not on a Cluster)
-- ARGV  1 now_us ('' = the server's clock)   2 override ('' = read the key)   3 lead_us: how long
--       before its turn a task is let go at most   4 lease_us: then an unconfirmed claim is void   5 how many
--       6 grace_us of those who are not parked   7 our broker: others' messages stay, and count
-- Reply: now_us (the copy's mark), when to visit again (0 = nobody is parked), then id, first-seen
--       time and message of each claimed task.
-- Who was let go (or promised to come back) and has not started counts as ahead for a while (FRESH_US),
-- so that a stall makes no burst; then no more, so that a dead worker makes no hole; but never more than
-- HELD_US's worth is out.
-- A task let go early sleeps in a pool's slot, one let go late loses its cell: so the lead is short
-- (SHORT_US covers the pace of the releasers), and twice as long more as one has been on its way.
local SHORT_US = 50000
local FRESH_US, HELD_US, CHUNK, MOST_SEEN = 1000000, 3000000, 50, 1000
local now, slack = clock(ARGV[1])
local lead, lease, most, grace = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local l, under_way = {}, 0
l.state, l.line, l.due, l.room, l.claims, l.started = unpack(KEYS, 1, 6)
local reply, visit, ahead, out, seen = { now, 0 }, 0, 0, 0, 0
local tat, ticks, units, ahead_us = read_state(l.state)
l.units = units
purge(l, now)
if l.units ~= units then keep_units(l, tat, ticks, ahead_us) end

-- the turn of a task with `ahead` before it, microseconds from now, by its own rule or the override
local function turn_of(message)
  local e, t, c = string.match(message, '^(%d+):(%d+):(%d+):')
  local emission, per_us, capacity, pause =
    in_force(KEYS[7], ARGV[2], now, tonumber(e), tonumber(t), tonumber(c))
  local at, at_ticks = clamped(tat, ticks, ahead_us, now, per_us, capacity)
  -- A state beyond what the rule allows: the limit was raised, or this message's rule is older than the
  -- state. Acquire knows the rule and keeps the clamp, so the first in line is offered to it; else the
  -- turn would move away with the clock.
  if at ~= tat and out == 0 and pause == 0 then return 0, 0 end
  local mean = math.max(l.units, l.count) / l.count
  local _, lag = look(at, at_ticks, now, emission, per_us, capacity, mean, pause)
  return (lag + ahead * mean * emission) / per_us, out * mean * emission / per_us
end

local function claim(id, message, before)
  if before then
    redis.call('HSETNX', l.started, id, LET_AGAIN)
    keep(l.started, 3600000)
  end
  redis.call('ZADD', l.claims, text(now), id)
  reply[#reply + 1], reply[#reply + 2] = id, redis.call('ZSCORE', l.line, id)
  reply[#reply + 1] = string.match(message, '^%d+:%d+:%d+:[^:]*:(.*)$')
  ahead, out = ahead + 1, out + 1
end

while visit == 0 and seen < l.count do
  for _, id in ipairs(redis.call('ZRANGE', l.line, seen, seen + CHUNK - 1)) do
    local message, claimed = redis.call('HGET', l.room, id), tonumber(redis.call('ZSCORE', l.claims, id))
    local foreign = message and string.match(message, '^%d+:%d+:%d+:([^:]*):') ~= ARGV[7]
    if foreign then ahead = ahead + 1
    elseif not message or claimed and math.abs(now - claimed) < lease then -- the clock may step
      out = out + 1
      local since = claimed or tonumber(redis.call('ZSCORE', l.due, id) or now + grace) - grace
      if math.abs(now - since) < FRESH_US then
        ahead = ahead + 1
        if claimed then under_way = math.max(under_way, now - claimed) end
      end
    else
      local turn, held = turn_of(message)
      local early = math.min(lead, SHORT_US + 2 * under_way)
      if turn > early then visit = now + turn - early
      elseif held > HELD_US and out > 2 or #reply > 3 * most then visit = now + 50000
      else claim(id, message, claimed) end
    end
    if visit > 0 then break end
  end
  seen = seen + CHUNK
  if seen >= MOST_SEEN and visit == 0 then visit = now + 50000 end
end
if visit == 0 and redis.call('EXISTS', l.room) == 1 then visit = now + lease end
settle_expiry(l, now, slack)
reply[2] = math.ceil(visit)
if KEYS[8] and visit > 0 then redis.call('ZADD', KEYS[8], text(visit), l.state)
elseif KEYS[8] then redis.call('ZREM', KEYS[8], l.state) end
return reply
