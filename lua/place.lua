-- Prelude of acquire.lua: one limit's part of a decision. `ask` is what was asked, for all limits:
-- now, slack, look_only, id, first_seen, max_sleep, horizon, grace, copy, message; then the decision:
-- verdict, wait, sleep, last (the limit that binds).

-- the rule in force for the limit at ARGV[a + 1 ...], its override at KEYS[k]
local function rule_at(ask, k, a)
  local found = {}
  found.text, found.pause = in_force(KEYS[k], ARGV[a + 3], ask.now, ARGV[a + 1])
  found.algorithm, found.r = rule_of(found.text)
  return found
end

-- read the limit at KEYS[k + 1 ...], ARGV[a + 1 ...]: its state, this task's rank and wait
local function examine(ask, k, a, rule)
  local l = line_at(KEYS, k)
  l.rank, l.count, l.seen, l.stored_units = 0, 0, ask.first_seen, l.units
  l.given, l.cost = ARGV[a + 1] .. ':', tonumber(ARGV[a + 2]) -- the caller's own rule
  l.rule, l.pause, l.algorithm, l.r = rule.text, rule.pause, rule.algorithm, rule.r
  local other = known_as(l, l.rule)
  l.found, l.found_full_at = l.n and { unpack(l.n) }, l.full_at
  l.clamped = l.algorithm.clamp(l, l.r, ask.now) or other
  l.former = l.n and joined(l.n) or ''
  l.lag, l.idle = l.algorithm.look(l, l.r, ask.now, l.cost)
  if l.pause > 0 then
    l.lag = math.max(l.lag, l.pause)
    l.idle = math.min(l.idle, -l.lag)
  end
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
  local turn = l.algorithm.pace(l.r, before)
  local may_sleep = l.seen > 0 and ask.max_sleep or math.floor(ask.max_sleep / NEWCOMER_SHARE)
  -- turns are taken well ahead: a cell still free now belongs to one who is late, or to nobody
  local free = may_sleep > 0 and -math.min(FREE_US, may_sleep) or IDLE_US
  local idle = l.idle >= free
  if idle and l.seen == 0 and l.count > 0 and l.units > l.count then
    -- some who wait cost more than one: none of what they save up for goes to newcomers
    idle = l.algorithm.wait(l, l.r, ask.now, l.cost, l.units) <= may_sleep
  end
  -- who was woken passes a second's worth of places, or any number if there are units for all of those ahead too
  l.blocked = l.lag > may_sleep or l.rank > 0 and not idle and (l.seen == 0
      or turn > PASS_US and l.algorithm.wait(l, l.r, ask.now, l.cost, before) > may_sleep)
  l.wait = 0
  if l.blocked then
    l.wait = math.max(l.algorithm.wait(l, l.r, ask.now, l.cost, before), 1)
    if l.pause > 0 then l.wait = math.max(l.wait, l.pause + turn) end
  end
  return l
end

-- write the limit's part of the decision: units spent, a place taken, kept or left
local function settle(ask, l)
  if ask.verdict == -2 then return end
  -- one place, in the line that binds: elsewhere it would stand in the way of others
  local takes_place = (ask.verdict == 0 or ask.verdict == 2) and l == ask.last and ask.id ~= ''
  if ask.verdict == 1 then
    l.algorithm.spend(l, l.r, ask.now, l.cost, ask.sleep)
    if ask.copy ~= '' then note_start(l, ask.id, ask.copy, ask.now) end
  elseif not l.clamped and not takes_place and l.units == l.stored_units
      and (ask.id == '' or l.units == 0) then
    return -- nothing to write
  elseif not l.clamped then
    l.n, l.full_at = l.found, l.found_full_at -- a denial forgets nothing
  end
  local seen = l.seen > 0 and l.seen or ask.now
  if takes_place and ask.verdict == 2 then
    park(l, ask.id, seen, l.given .. ask.message)
  elseif takes_place then
    local deadline = ask.now + math.min(ask.wait, ask.horizon) + ask.grace
    join(l, ask.id, seen, deadline, math.ceil((deadline - ask.now) / 1000) + ask.slack)
  elseif ask.id ~= '' and l.count > 0 then
    leave(l, ask.id)
  end
  local ttl = life(l, ask.now, ask.slack)
  if l.units > 0 then
    local line_ttl = lifetime(l)
    ttl = line_ttl > 0 and math.max(ttl, line_ttl) or 0
    if line_ttl > 0 then keep(l.line, line_ttl) end -- nobody is parked any more
  end
  save(l, ttl)
end
