-- Prelude of acquire.lua: one limit's part of a decision. `ask` holds the question for all limits:
-- now, slack, look_only, id, first_seen, max_sleep, horizon, grace, copy, message, lane, broker, queue. Then it gets
-- the decision: verdict, wait, sleep, last (the limit with the longest wait), wake (a limit with a lane that was gone
-- and is back).

local TELL_US = 200000 -- a line with another broker's tasks is visited within this time

-- The rule in force for the limit at ARGV[a + 1 ...]. Its override is at KEYS[k].
local function rule_at(ask, k, a)
  local found = {}
  found.text, found.pause = in_force(KEYS[k], ARGV[a + 3], ask.now, ARGV[a + 1])
  found.algorithm, found.r = rule_of(found.text)
  return found
end

-- Find this task's ticket, its rank and the units ahead of it.
local function find_place(ask, l)
  purge(l, ask.now, ask.grace, not ask.look_only)
  if ask.copy ~= '' and started_already(l, ask.id, ask.copy) then ask.verdict = -2 end
  l.ticket = ask.id ~= '' and ticket_at(l, ask.id) or nil
  if l.count == 0 then return end
  notice_gone(l, ask.now)
  if l.ticket then
    -- If the place is newer than the message's, the task rejected itself (celery/again.py): its turn did not wake it.
    l.woken = not (ask.first_seen > 0 and ask.first_seen < l.ticket.place)
    l.seen = l.ticket.place
  end
  local place, lane = l.seen > 0 and l.seen or nil, l.ticket and l.ticket.lane
  l.rank = rank_of(l, place, ask.id, lane)
  l.before, l.most = units_ahead(l, l.rank, place, lane and ask.id, ask.now)
end

-- Read the limit at KEYS[k + 1 ...], ARGV[a + 1 ...]: its state, and this task's place in the line.
local function examine(ask, k, a, rule)
  local l = line_at(KEYS, k)
  l.rank, l.count, l.seen, l.before, l.most = 0, 0, ask.first_seen, 0, 0
  l.woken = l.seen > 0
  l.given, l.cost = ARGV[a + 1], tonumber(ARGV[a + 2]) -- the caller's own rule
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
  if l.units > 0 or l.seen > 0 then find_place(ask, l) end
  return l
end

-- Decide whether this limit admits the task now, or how long it must wait. `together`: how far ahead a limit may be
-- booked. If one limit were booked for much later than it could be, because another limit of the task admits it later,
-- the cells until then would be lost.
local function judge(ask, l, together)
  local turn = l.algorithm.pace(l.r, l.before)
  local may_sleep = l.woken and ask.max_sleep or math.floor(ask.max_sleep / NEWCOMER_SHARE)
  local function all_fit() return l.algorithm.wait(l, l.r, ask.now, l.cost, l.before) <= may_sleep end
  -- Woken tasks take their cells well ahead, so a cell that is still free now belongs to a late task or to none.
  local free = may_sleep > 0 and -math.min(FREE_US, may_sleep) or IDLE_US
  local idle = l.idle >= free
  -- Units that a task ahead saves up for a larger cost must not go to other tasks.
  local saving = l.most > l.cost or l.seen == 0 and l.count > 0 and l.units > l.count
  if idle and saving then idle = all_fit() end
  -- A woken task may overtake a second's worth of places, or any number if there are units for all tasks ahead as well.
  local passes = l.woken and (turn <= PASS_US and not saving or all_fit())
  l.blocked = l.lag > math.min(may_sleep, together) or l.rank > 0 and not idle and not passes
  l.wait = 0
  if l.blocked then
    l.wait = math.max(l.algorithm.wait(l, l.r, ask.now, l.cost, l.before), 1)
    if l.pause > 0 then l.wait = math.max(l.wait, l.pause + turn) end
  end
end

-- Take, keep or leave the task's place in this line.
local function settle_place(ask, l, takes_place)
  local seen = l.seen > 0 and l.seen or ask.now
  if l.seen > 0 and l.count > 0 then
    if hear(l, l.ticket and l.ticket.lane or ask.lane, ask.now, l.seen, ask.copy) then ask.wake = l end
  elseif l.count > 0 and probe(l, ask.lane, ask.now) then
    ask.wake = l
  end
  local t = { lane = ask.lane, place = seen, cost = l.cost, let_go_at = 0, tries = 0, not_before = 0 }
  if takes_place and not (l.ticket and l.ticket.lane == ask.lane) then
    local lane = lane_at(l, ask.lane, ask.now)
    lane.broker, lane.queue = ask.broker, ask.queue
  end
  if takes_place and ask.verdict == 2 then
    park(l, ask.id, t, l.ticket, FORM .. ':' .. l.given .. ':' .. ask.message, ask.now)
  elseif takes_place then
    local hop = math.min(ask.wait, ask.horizon, math.max(ask.hop, math.floor(ask.wait / 2)))
    local deadline = ask.now + hop + ask.grace
    join(l, ask.id, t, l.ticket, deadline, math.ceil((deadline - ask.now) / 1000) + ask.slack, ask.now)
  elseif l.ticket then
    drop(l, ask.id, l.ticket)
  end
end

-- Write the limit's part of the decision: spend the units, and take, keep or leave a place.
local function settle(ask, l)
  if ask.verdict == -2 then return end
  -- A task takes one place, in the line of the limit with the longest wait. In other lines it would delay other tasks.
  local takes_place = (ask.verdict == 0 or ask.verdict == 2) and l == ask.last and ask.id ~= ''
  if ask.verdict == 1 then
    l.algorithm.spend(l, l.r, ask.now, l.cost, ask.sleep)
    if ask.copy ~= '' then note_start(l, ask.id, ask.copy, ask.now) end
  elseif not l.clamped and not takes_place and not l.touched and (ask.id == '' or l.units == 0) then
    return -- nothing to write
  elseif not l.clamped then
    l.n, l.full_at = l.found, l.found_full_at -- a denial forgets nothing
  end
  if ask.id ~= '' and (takes_place or l.count > 0) then settle_place(ask, l, takes_place) end
  write_lanes(l)
  local ttl = life(l, ask.now, ask.slack)
  if l.units > 0 or l.ticket then -- a task waits, or the last one has just left
    local line_ttl = lifetime(l)
    ttl = line_ttl > 0 and math.max(ttl, line_ttl) or 0
    if l.extended or line_ttl > 0 and redis.call('PTTL', l.line) < line_ttl then expire(l, line_ttl) end
  end
  save(l, ttl)
end

-- When releasers should visit which line, microseconds. 0: no visit is needed beside those already noted.
local function visit(ask)
  if ask.wake then return ask.now, ask.wake.key end
  if ask.verdict ~= 0 and ask.verdict ~= 2 then return 0 end
  local at = ask.verdict == 2 and ask.now + ask.wait - ask.lead or 0
  for _, lane in pairs(ask.last.by_lane or {}) do
    if lane.broker ~= ask.broker and lane.gone < NOBODY then -- a releaser knows whether that broker has workers
      at = math.min(at > 0 and at or math.huge, ask.now + TELL_US)
    end
  end
  return at, ask.last.key
end
