--@ state * line room
-- Claim the parked messages whose turn has come. A claim is void after a lease.
-- KEYS  state, line, tickets, lanes, due, room, started, bad, override, and the index of rooms (not on a Cluster)
-- ARGV  1 now_us ('' = the server's clock)   2 override ('' = read the key)   3 lead_us: at most so long
--       before its turn a task is let go; -1: all tasks, whatever their turn is   4 lease_us: after this time an
--       unconfirmed claim is void   5 how many   6 bytes of all messages, about   7 grace_us of tasks that are not
--       parked   8 our broker: messages of other brokers stay   9 the brokers that have workers, parted by spaces
-- Reply: now_us (the mark of these copies), when to visit again (0 = no task of our broker is parked), how many
--       messages have a newer form and stay, how many were unreadable and lie in quarantine now, then ticket,
--       place and message of each claimed task.
-- A task that was let go and has not come counts as ahead until its cell has passed, so a stall makes no burst, and a
-- dead worker leaves no cells unused. In one lane, never more than HELD_US's worth of tasks (and as many as twice the
-- lane's way takes) is out, unless units for all of them exist. A lane in which no task comes is gone: its tasks keep
-- their places, one of them at a time is offered as a probe, and the other lanes go on as if it did not exist.
-- A task that is let go early sleeps in a slot of the pool, and a task that is let go late loses its cell. So the lead
-- is short (SHORT_US covers the pace of the releasers), plus twice the time for which the oldest task has been on its
-- way.
local SHORT_US, HELD_US, CHUNK, MOST_SEEN = 50000, 3000000, 50, 1000
local MOST_REFUSED = 200                     -- one look passes at most so many refused messages that must wait
local FULL_US = 100000                       -- a lane with enough tasks under way is looked at again after this time
-- After this time (or that of a unit) it looks whether others are still ahead. It is not a round number: looks that meet every
-- window at its beginning would never find the limit idle.
local OTHERS_US, NOT_ROUND = 930000, 0.93
local PROBE_US, PROBE_MOST_US = 2000000, 60000000 -- between two probes of a lane that is gone: at least, at most
local RECOUNT_US = 60000000                  -- after this time a line whose lanes count no parked task is checked
local now, slack = clock(ARGV[1])
local lead, lease, most, grace = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[7])
local l = room_at(KEYS)
local override, rules = ARGV[2] ~= '' and ARGV[2] or redis.call('GET', KEYS[9]) or NO_OVERRIDE, {}
local reply, bytes, newer, bad, visit = { now, 0, 0, 0 }, 0, 0, 0, math.huge
local ahead, out, outs, under_way = 0, 0, {}, 0 -- units ahead, tasks let go, and how long the oldest is on its way
local units = l.units
in_force(KEYS[9], override, now, '') -- a foreign override is an error of the whole line
purge(l, now, grace, true)
notice_gone(l, now)

-- The line's state under a message's own rule (or under the override).
local function under(given)
  if rules[given] then return rules[given] end
  local rule, pause = in_force(KEYS[9], override, now, given)
  local u = { key = l.key, kind = l.kind, n = l.n and { unpack(l.n) }, full_at = l.full_at, pause = pause }
  u.algorithm, u.r = rule_of(rule)
  known_as(u, rule)
  u.beyond = u.algorithm.clamp(u, u.r, now)
  rules[given] = u
  return u
end

-- After what time a line in which tasks of other brokers are ahead is looked at again.
local function pause_us(u) return math.max(OTHERS_US, NOT_ROUND * u.algorithm.pace(u.r, 1)) end

local function early_us() return math.min(lead, SHORT_US + 2 * under_way) end

-- The units before a place that belong to other brokers' tasks and are waited for.
local function foreign_ahead(place)
  local sum = 0
  for name, lane in pairs(l.by_lane) do
    if not lane.ours and lane.gone < NOBODY then
      local number = redis.call('ZLEXCOUNT', l.line, beginning(name, lane), '(' .. name .. ':' .. sortable(place))
      for _, one in ipairs(l.late) do
        if one.t.lane == name and one.t.place >= lane.gone and one.t.place < place then number = number - 1 end
      end
      local mean = 1
      if number > 0 and l.units ~= l.count then
        mean = lane.units / redis.call('ZLEXCOUNT', l.line, '[' .. name .. ':', '(' .. name .. ';')
      end
      sum = sum + math.max(number, 0) * mean
    end
  end
  return sum
end

-- If the limit idles although tasks of other brokers are ahead, a task of their lanes must come within LATE_US.
-- Otherwise these lanes are gone, like a lane of ours in which no task comes: their releasers died, or cannot reach
-- their broker. (In a lane that is not gone, `probe_at` is the time until which a task must come.)
local function leave_others(u, t)
  local _, idle = u.algorithm.look(u, u.r, now, t.cost)
  if u.pause > 0 or idle < u.algorithm.pace(u.r, t.cost) then return end
  for _, lane in pairs(l.by_lane) do
    if not lane.ours and lane.gone < NOBODY then
      local left = lane.probe_at - now
      local began = left <= LATE_US and left > -2 * pause_us(u) and lane.heard_at < lane.probe_at - LATE_US
      if not began then lane.probe_at, lane.changed = now + LATE_US, true
      elseif left <= 0 then lane.gone, lane.changed = now, true end
    end
  end
end

-- When the turn of a task comes, microseconds from now, and how many of the units ahead belong to other brokers.
local function turn_of(u, t)
  -- The state is beyond what the rule allows, because the limit was raised, or because this message's rule is older
  -- than the state. Only acquire.lua stores the clamped state, so the first task in line is offered to it. Otherwise
  -- the turn would move away with the clock.
  if u.beyond and out == 0 and u.pause == 0 then return 0, 0 end
  local others = foreign_ahead(t.place)
  if others > 0 then
    leave_others(u, t)
    others = foreign_ahead(t.place)
  end
  local before = ahead + others
  local turn = u.algorithm.wait(u, u.r, now, t.cost, before)
  return u.pause > 0 and math.max(turn, u.pause + u.algorithm.pace(u.r, before)) or turn, others
end

-- Whether as many tasks of a lane are under way as may be.
local function is_full(u, t, lane)
  return lane.out > 2 and u.algorithm.pace(u.r, lane.out_units) > HELD_US + 2 * lane.way
    and u.algorithm.wait(u, u.r, now, t.cost, lane.out_units) > early_us()
end

local function claim(id, t, lane, message)
  if t.let_go_at > 0 then -- it was let go before, and may be on its way
    redis.call('HSETNX', l.started, id, LET_AGAIN)
    keep(l.started, 3600000)
  end
  t.let_go_at = now
  write_ticket(l, id, t)
  for _, part in ipairs({ id, text(t.place), message }) do reply[#reply + 1] = part end
  bytes, out, lane.out, lane.out_units = bytes + #message, out + 1, lane.out + 1, lane.out_units + t.cost
  if lane.gone == REFUSED then return end
  if lane.gone > t.place then
    lane.probing = false
    lane.probe_at = now + math.min(math.max((now - lane.heard_at) / 2, PROBE_US), PROBE_MOST_US)
    lane.changed = true
  else
    ahead = ahead + t.cost
  end
end

-- Count a task whose message is not in the room, or is claimed: it may come or not. A ticket without a deadline is
-- dropped.
local function pass(id, t, lane)
  local deadline = t.parked or tonumber(redis.call('ZSCORE', l.due, id) or '')
  if not deadline then
    drop(l, id, t)
  elseif t.let_go_at > 0 then
    out, lane.out, lane.out_units = out + 1, lane.out + 1, lane.out_units + t.cost
    if lane.gone <= t.place then outs[#outs + 1] = t end
  elseif lane.gone <= t.place and deadline - grace > now - LATE_US then
    ahead = ahead + t.cost -- it waits as a countdown
  end
end

-- Count the tasks that were let go as ahead if their cells, at the pace of this rule, have not passed.
local function count_outs(u)
  for _, t in ipairs(outs) do
    local ago = math.abs(now - t.let_go_at) -- the clock may step
    if ago < lead + u.algorithm.pace(u.r, t.cost) then
      ahead, under_way = ahead + t.cost, math.max(under_way, ago)
    end
  end
  outs = {}
end

-- The state under a message's rule, and how long until the task is let go, microseconds.
local function rest_of(rule, t)
  local u = under(rule)
  count_outs(u)
  local turn, others = turn_of(u, t)
  local rest = turn - early_us()
  -- Tasks of other brokers may leave the line without a start, and this line is not told of it. So it looks again.
  return u, others > 0 and math.min(rest, pause_us(u)) or rest
end

-- Claim a parked task if its turn has come. Returns 'next' if the next task of its lane may be looked at, 'lane' if
-- this lane is finished, or 'done' if the turn of the whole line has not come.
local function offer(id, t, lane)
  local parked = redis.call('HGET', l.room, id)
  if is_newer(parked) then newer = newer + 1 return 'next' end
  local rule, message = string.match(parked or '', '^%d+:([^:]*):(.*)$')
  local sound, u, rest = pcall(rest_of, rule, t)
  if not sound or not (rest < NOBODY) then
    bad = bad + 1
    quarantine(l, id, t, now, 'unreadable')
    return 'next'
  end
  if lead >= 0 then
    if rest > 0 then visit = math.min(visit, now + rest) return 'done' end
    if is_full(u, t, lane) then visit = math.min(visit, now + FULL_US) return 'lane' end
  end
  if #reply > 4 and (bytes + #message > tonumber(ARGV[6]) or #reply > 3 * most + 1) then
    visit = now
    return 'done'
  end
  claim(id, t, lane, message)
  return 'next'
end

-- Free a place whose ticket is missing or foreign. Its message, if there is one, goes into quarantine.
local function lose(id, lane)
  local message = redis.call('HGET', l.room, id)
  if is_newer(message) then newer = newer + 1 return 'next' end
  local lost = { lane = lane.name, place = tonumber(string.match(lane.its, ':(%d+):')) or now, cost = 1, parked = true }
  redis.call('HDEL', l.tickets, id)
  if message then
    bad = bad + 1
    set_aside(l, id, lost, now, 'its ticket is unreadable')
  end
  redis.call('ZREM', l.line, lane.its)
  redis.call('ZREM', l.due, id)
  count(l, lost, -1, now)
  return 'next'
end

-- Put messages into quarantine that belong to no lane, because the walk would never reach them. They are looked for
-- only if the counters disagree.
local function set_lost_aside()
  local known, found = 0, 0
  for _, lane in pairs(l.by_lane) do
    if l.count == 0 and lane.units + lane.parked > 0 then lane.units, lane.parked, lane.changed = 0, 0, true end
    known = known + lane.parked
  end
  local over = redis.call('HLEN', l.room) - known
  if over <= 0 then return end
  for _, id in ipairs(redis.call('HRANDFIELD', l.room, MOST_SEEN)) do
    local t = ticket_at(l, id)
    local stands = t and t.parked and l.by_lane[t.lane] and redis.call('ZSCORE', l.line, member(id, t))
    if not stands and not is_newer(redis.call('HGET', l.room, id)) then
      set_aside(l, id, t or { lane = '0', place = now, cost = 1 }, now, 'its place in the line is lost')
      redis.call('HDEL', l.tickets, id)
      found, bad = found + 1, bad + 1
    end
  end
  local _, lane = next(l.by_lane)
  if lane and found == 0 then lane.parked, lane.changed = lane.parked + over, true end -- only the counter was wrong
end

-- Look at one ticket of our broker. Returns the same as `offer`.
local function look_at(id, t, lane)
  if not t then return lose(id, lane) end
  local claimed = t.let_go_at > 0 and math.abs(now - t.let_go_at) < lease
  if not t.parked or claimed then
    if t.parked then visit = math.min(visit, t.let_go_at + lease) end
    pass(id, t, lane)
  elseif t.not_before > now then
    visit, lane.pausing = math.min(visit, t.not_before), (lane.pausing or 0) + 1
    if lane.gone == REFUSED and lane.pausing >= MOST_REFUSED then return 'lane' end
  elseif lane.gone > t.place and lane.gone < NOBODY and not lane.probing and lead >= 0 then
    visit = math.min(visit, lane.probe_at)
    return 'lane'
  else
    return offer(id, t, lane)
  end
  return 'next'
end

local walk = walk_of(l, ARGV[8], ARGV[9], CHUNK)
for _, lane in pairs(l.by_lane) do
  lane.out, lane.out_units, lane.probing = 0, 0, lane.gone > 0 and now >= lane.probe_at
  -- While no task of the lane comes, tasks that were parked since it is gone do not count either.
  if lane.ours and lane.gone > lane.heard_at and lane.gone < NOBODY then lane.gone, lane.changed = now, true end
end
for seen = 1, MOST_SEEN do
  local id, t, lane = walk()
  if not id then break end
  local said = look_at(id, t, lane)
  if said == 'lane' then lane.left = nil elseif said == 'done' then break end
  if seen == MOST_SEEN then visit = math.min(visit, now + FULL_US) end
end

set_lost_aside()
write_lanes(l)
if l.units ~= units then save(l) end
local parked, waits = 0, 0
for _, lane in pairs(l.by_lane) do
  if lane.ours then parked, waits = parked + lane.parked, waits + lane.units end
end
if parked > 0 then visit = visit < math.huge and visit or now + lease
else visit = waits > 0 and redis.call('EXISTS', l.room) == 1 and now + RECOUNT_US or 0 end
settle_expiry(l, now, slack)
reply[2], reply[3], reply[4] = math.ceil(visit), newer, bad
note_visit(KEYS[10], l.key, visit)
return reply
