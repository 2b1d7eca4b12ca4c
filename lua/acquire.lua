--@ fast gcra line
-- Decide for one task under one or several limits: all are spent, or none is.
-- KEYS  per limit: state, line, deadlines
-- ARGV  1 now_us ('' = the server's clock)   2 '1' = only look, write nothing
--       3 ticket id ('' = does not wait in the line)   4 first_seen_us (0 = fresh)
--       5 max_sleep_us (a newcomer: a fifth of it)   6 horizon_us   7 grace_us   8 expires_in_us (-1 = never)
--       then per limit: emission (ticks), ticks per us, capacity (ticks), cost (units)
-- Reply integers: three (see fast.lua), or verdict (1 admitted, 0 denied, -1 would expire before its
--       turn: no place), wait_us (denied) or sleep_us (admitted), now_us, first_seen_us, then per
--       limit: wait_us, rank, waiting, and the former tat_us (0 = none), tat_ticks, ahead_us
-- Keeps invariants 1 to 4 of gcra.py; a denial writes its ticket, and clamps a state that no
-- honest history left.
local now, slack = clock(ARGV[1])
local look_only, id, first_seen = ARGV[2] == '1', ARGV[3], tonumber(ARGV[4])
local max_sleep, horizon = tonumber(ARGV[5]), tonumber(ARGV[6])
local limits, wait, sleep, denied, known = {}, 0, 0, false, math.huge
for i = 1, #KEYS / 3 do
  local a = 4 * i + 4
  local l = {
    state = KEYS[3 * i - 2], line = KEYS[3 * i - 1], deadlines = KEYS[3 * i],
    emission = tonumber(ARGV[a + 1]), per_us = tonumber(ARGV[a + 2]),
    capacity = tonumber(ARGV[a + 3]), cost = tonumber(ARGV[a + 4]),
    rank = 0, count = 0, seen = first_seen,
  }
  local stored
  stored, l.ticks, l.units, l.ahead_us = read_state(l.state)
  l.tat, l.ticks = clamped(stored, l.ticks, l.ahead_us, now, l.per_us, l.capacity)
  l.clamped, l.stored_units = l.tat ~= stored, l.units
  l.ahead, l.lag, l.idle = look(l.tat, l.ticks, now, l.emission, l.per_us, l.capacity, l.cost)
  local before = 0 -- units of those ahead
  if l.units > 0 or l.seen > 0 then
    if look_only then l.count = redis.call('ZCARD', l.line)
    else l.count, l.units = purge(l.line, l.deadlines, now, l.units) end
    l.rank = l.count
    if id ~= '' and l.count > 0 then
      local score = redis.call('ZSCORE', l.line, id)
      l.seen = tonumber(score) or l.seen
      if score then l.rank = redis.call('ZRANK', l.line, id)
      elseif l.seen > 0 then
        l.rank = redis.call('ZCOUNT', l.line, '-inf', string.format('(%.0f', l.seen))
      end
    end
    if l.seen > 0 then known = math.min(known, l.seen) end
    if l.count > 0 then before = math.floor(l.units * l.rank / l.count) end
  end
  local turn = before * l.emission
  local may_sleep = l.seen > 0 and max_sleep or math.floor(max_sleep / NEWCOMER_SHARE)
  l.blocked = l.lag > may_sleep * l.per_us or l.rank > 0 and l.idle < IDLE_US * l.per_us
      and (l.seen == 0 or turn > PASS_US * l.per_us)
  l.wait = math.max(math.ceil((l.lag + turn) / l.per_us), 1)
  if l.blocked then denied, wait = true, math.max(wait, l.wait) end
  sleep = math.max(sleep, math.ceil(l.lag / l.per_us))
  limits[i] = l
end

local verdict, expires_in = 1, tonumber(ARGV[8])
if denied then
  verdict = 0
  if id ~= '' and expires_in >= 0 and wait > expires_in then verdict = -1 end
  if id ~= '' and first_seen == 0 then first_seen = known < math.huge and known or now end
end

local function write(l)
  local tat, ticks, ahead_us, line_ttl = l.tat or 0, l.ticks, l.ahead_us, 0
  if verdict == 1 then
    l.ahead = math.max(l.ahead, sleep * l.per_us) + l.cost * l.emission
    tat, ticks, ahead_us = now + math.floor(l.ahead / l.per_us), l.ahead % l.per_us, sleep
  elseif not l.clamped and (id == '' or not l.blocked and l.stored_units == 0) then
    return -- nothing to write
  end
  if verdict == 0 and l.blocked and id ~= '' then
    local seen = l.seen > 0 and l.seen or now
    local deadline = now + math.min(wait, horizon) + tonumber(ARGV[7])
    l.count, l.units, line_ttl = join(l.line, l.deadlines, id, seen, deadline, l.count, l.units, l.cost,
      math.ceil((deadline - now) / 1000) + slack)
  elseif l.count > 0 and id ~= '' then
    l.count, l.units = leave(l.line, l.deadlines, id, l.count, l.units, l.cost)
  end
  if l.units > 0 then line_ttl = math.max(line_ttl, redis.call('PTTL', l.deadlines)) end
  local ttl = math.max(math.ceil(l.ahead / l.per_us / 1000) + slack, line_ttl, 1)
  write_state(l.state, tat, ticks, l.units, ahead_us, ttl)
end

local reply = { verdict, denied and wait or sleep, now, first_seen }
for _, l in ipairs(limits) do
  local n, former = #reply, l.ahead_us
  if not look_only then write(l) end
  reply[n + 1], reply[n + 2], reply[n + 3] = l.blocked and l.wait or 0, l.rank, l.count
  reply[n + 4], reply[n + 5], reply[n + 6] = l.tat or 0, l.ticks, former
end
return reply
