--@ state * line
-- Claim the parked messages whose turn has come, under a lease.
-- KEYS  state, line, due, room, claims, started, override, and the index of rooms (not on a Cluster)
-- ARGV  1 now_us ('' = the server's clock)   2 override ('' = read the key)   3 lead_us: how long
--       before its turn a task is let go at most   4 lease_us: then an unconfirmed claim is void   5 how many
--       6 grace_us of those who are not parked   7 our broker: others' messages stay, and count
-- Reply: now_us (the copy's mark), when to visit again (0 = nobody is parked), then id, first-seen
--       time and message of each claimed task.
-- Who was let go (or promised to come back) and has not started counts as ahead for a while (FRESH_US),
-- so that a stall makes no burst; then no more, so that a dead worker makes no hole; but never more than
-- HELD_US's worth is out, unless units for all of those exist.
-- A task let go early sleeps in a pool's slot, one let go late loses its cell: so the lead is short
-- (SHORT_US covers the pace of the releasers), and twice as long more as one has been on its way.
local SHORT_US = 50000
local FRESH_US, HELD_US, CHUNK, MOST_SEEN = 1000000, 3000000, 50, 1000
local now, slack = clock(ARGV[1])
local lead, lease, most, grace = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local l, under_way = line_at(KEYS), 0
local override, rules = ARGV[2] ~= '' and ARGV[2] or redis.call('GET', KEYS[7]) or ':0', {}
local reply, visit, ahead, out, seen = { now, 0 }, 0, 0, 0, 0
local units = l.units
purge(l, now)
if l.units ~= units then save(l) end

-- the line's state under a message's own rule (or the override)
local function under(given)
  local rule, pause = in_force(KEYS[7], override, now, given)
  local u = { key = l.key, kind = l.kind, n = l.n and { unpack(l.n) }, full_at = l.full_at, pause = pause }
  u.algorithm, u.r = rule_of(rule)
  known_as(u, rule)
  u.beyond = u.algorithm.clamp(u, u.r, now)
  return u
end

local function early_us() return math.min(lead, SHORT_US + 2 * under_way) end

-- the turn of a task with `ahead` before it, microseconds from now; and whether too many are out
local function turn_of(message)
  local given = string.match(message, '^[^:]*')
  local u = rules[given] or under(given)
  rules[given] = u
  -- A state beyond what the rule allows: the limit was raised, or this message's rule is older than the
  -- state. Acquire knows the rule and keeps the clamp, so the first in line is offered to it; else the
  -- turn would move away with the clock.
  if u.beyond and out == 0 and u.pause == 0 then return 0, false end
  local mean = math.max(l.units, l.count) / l.count
  local turn = u.algorithm.wait(u, u.r, now, mean, ahead * mean)
  if u.pause > 0 then turn = math.max(turn, u.pause + u.algorithm.pace(u.r, ahead * mean)) end
  return turn, out > 2 and u.algorithm.pace(u.r, out * mean) > HELD_US
    and u.algorithm.wait(u, u.r, now, mean, out * mean) > early_us()
end

local function claim(id, message, before)
  if before then
    redis.call('HSETNX', l.started, id, LET_AGAIN)
    keep(l.started, 3600000)
  end
  redis.call('ZADD', l.claims, text(now), id)
  reply[#reply + 1], reply[#reply + 2] = id, redis.call('ZSCORE', l.line, id)
  reply[#reply + 1] = string.match(message, '^[^:]*:[^:]*:(.*)$')
  ahead, out = ahead + 1, out + 1
end

while visit == 0 and seen < l.count do
  for _, id in ipairs(redis.call('ZRANGE', l.line, seen, seen + CHUNK - 1)) do
    local message, claimed = redis.call('HGET', l.room, id), tonumber(redis.call('ZSCORE', l.claims, id))
    local foreign = message and string.match(message, '^[^:]*:([^:]*):') ~= ARGV[7]
    if foreign then ahead = ahead + 1
    elseif not message or claimed and math.abs(now - claimed) < lease then -- the clock may step
      out = out + 1
      local since = claimed or tonumber(redis.call('ZSCORE', l.due, id) or now + grace) - grace
      if math.abs(now - since) < FRESH_US then
        ahead = ahead + 1
        if claimed then under_way = math.max(under_way, now - claimed) end
      end
    else
      local turn, too_many = turn_of(message)
      if turn > early_us() then visit = now + turn - early_us()
      elseif too_many or #reply > 3 * most then visit = now + 50000
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
if KEYS[8] and visit > 0 then redis.call('ZADD', KEYS[8], text(visit), l.key)
elseif KEYS[8] then redis.call('ZREM', KEYS[8], l.key) end
return reply
