-- Prelude of acquire.lua: one limit's part of a decision. `ask` is what was asked, for all limits:
-- now, slack, look_only, id, first_seen, max_sleep, horizon, grace, copy, message; then the decision:
-- verdict, wait, sleep, last (the limit that binds).

-- read the limit at KEYS[k + 1 ...], ARGV[a + 1 ...]: its state, this task's rank and wait
local function examine(ask, k, a)
  local l = { rank = 0, count = 0, seen = ask.first_seen }
  l.state, l.line, l.due, l.room, l.claims, l.started = unpack(KEYS, k + 1, k + 6)
  l.cost = tonumber(ARGV[a + 4])
  l.rule = ARGV[a + 1] .. ':' .. ARGV[a + 2] .. ':' .. ARGV[a + 3] .. ':' -- the caller's own
  l.emission, l.per_us, l.capacity, l.pause = in_force(KEYS[k + 7], ARGV[a + 5], ask.now,
    tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3]))
  local stored
  stored, l.ticks, l.units, l.ahead_us = read_state(l.state)
  l.tat, l.ticks = clamped(stored, l.ticks, l.ahead_us, ask.now, l.per_us, l.capacity)
  l.clamped, l.stored_units = l.tat ~= stored, l.units
  l.ahead, l.lag, l.idle = look(l.tat, l.ticks, ask.now, l.emission, l.per_us, l.capacity, l.cost, l.pause)
  local before = 0 -- units of those ahead
  if l.units > 0 or l.seen > 0 then
    if ask.look_only then l.count = redis.call('ZCARD', l.line) else purge(l, ask.now) end
    l.rank = l.count
    if ask.copy ~= '' and started_already(l, ask.id, ask.copy) then ask.verdict = -2 end
    local score = ask.id ~= '' and redis.call('ZSCORE', l.line, ask.id)
    l.seen = tonumber(score or l.seen)
    if score then l.rank = redis.call('ZRANK', l.line, ask.id)
    elseif l.seen > 0 then
      l.rank = redis.call('ZCOUNT', l.line, '-inf', string.format('(%.0f', l.seen))
    end
    if l.count > 0 then before = math.floor(l.units * l.rank / l.count) end
  end
  local turn = before * l.emission
  local may_sleep = l.seen > 0 and ask.max_sleep or math.floor(ask.max_sleep / NEWCOMER_SHARE)
  -- turns are taken well ahead: a cell still free now belongs to one who is late, or to nobody
  local free = may_sleep > 0 and -math.min(FREE_US, may_sleep) or IDLE_US
  l.blocked = l.lag > may_sleep * l.per_us or l.rank > 0 and l.idle < free * l.per_us
      and (l.seen == 0 or turn > PASS_US * l.per_us)
  l.wait = math.max(math.ceil((l.lag + turn) / l.per_us), 1)
  return l
end

-- write the limit's part of the decision: units spent, a place taken, kept or left
local function settle(ask, l)
  if ask.verdict == -2 then return end
  local tat, ticks, ahead_us = l.tat or 0, l.ticks, l.ahead_us
  -- one place, in the line that binds: elsewhere it would stand in the way of others
  local takes_place = (ask.verdict == 0 or ask.verdict == 2) and l == ask.last and ask.id ~= ''
  if ask.verdict == 1 then
    l.ahead = math.max(l.ahead, ask.sleep * l.per_us) + l.cost * l.emission
    tat, ticks = ask.now + math.floor(l.ahead / l.per_us), l.ahead % l.per_us
    ahead_us = math.max(ask.sleep, math.ceil((l.ahead - l.capacity) / l.per_us))
    if ask.copy ~= '' then note_start(l, ask.id, ask.copy, ask.now) end
  elseif not l.clamped and not takes_place and l.units == l.stored_units
      and (ask.id == '' or l.units == 0) then
    return -- nothing to write
  end
  local seen = l.seen > 0 and l.seen or ask.now
  if takes_place and ask.verdict == 2 then
    park(l, ask.id, seen, l.rule .. ask.message)
  elseif takes_place then
    local deadline = ask.now + math.min(ask.wait, ask.horizon) + ask.grace
    join(l, ask.id, seen, deadline, math.ceil((deadline - ask.now) / 1000) + ask.slack)
  elseif ask.id ~= '' and l.count > 0 then
    leave(l, ask.id)
  end
  local ttl = math.max(math.ceil(l.ahead / l.per_us / 1000) + ask.slack, 1)
  if l.units > 0 then
    local line_ttl = lifetime(l)
    ttl = line_ttl > 0 and math.max(ttl, line_ttl) or 0
  end
  write_state(l.state, tat, ticks, l.units, ahead_us, ttl)
end
