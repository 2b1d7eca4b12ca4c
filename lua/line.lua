-- Prelude of scripts that look at a line: the tasks waiting under one key, in order.
--
-- A ticket (a text) holds a task's place in the line. Tickets stand in lanes. There is one lane for each queue (of each
-- broker) from which tasks come, because a queue that nobody reads must not delay the tasks of other queues.
-- l.line     sorted set, all scores 0, so ordered by text: '<lane>:<place>:<ticket>'. A place is the time of
--            the first denial, 16 digits
-- l.tickets  hash: ticket -> '<lane>:<place>:<cost>:<parked, 0 or 1>:<let_go_at>:<tries>:<not_before>'
-- l.lanes    hash: lane -> '1:<units>:<parked>:<gone>:<heard_at>:<way>:<probe_at>:<broker>:<queue>'
-- l.due      sorted set of the tickets that are not parked: ticket -> promised wake-up + grace, microseconds.
--            A ticket whose time has passed belongs to a task that died, was revoked or expired
-- l.room     hash of the tickets that are parked: ticket -> '1:<rule>:<message>'
-- l.started  hash of tasks that were let go twice: ticket -> LET_AGAIN, then '<copy that started>:<when>'
-- All times are microseconds. The fields of a lane: tickets with a place below `gone` do not count as ahead of other
-- tasks (0: all tickets count; NOBODY: none counts, because the lane's broker has no workers; REFUSED: none counts, see
-- `refused_lane`); heard_at: when a task of the lane last came; way: how long the last task that was let go took to
-- reach its worker; probe_at: when a task may be let go although no task of the lane comes.

-- Numbers in capitals that are not defined here come from src/fleetlimit/store/shared.py.
local LONGEST_WAY_US = 600000000
local LET_AGAIN = '0'

local function sortable(place) return string.format('%016.0f', place) end
local function member(id, t) return t.lane .. ':' .. sortable(t.place) .. ':' .. id end
-- The messages of a queue that the broker refused stand in a lane of their own until they are published or in
-- quarantine: they cannot start, so no other task waits for them.
local function is_refused(name) return string.sub(name, -1) == '~' end
local function queue_lane(name) return is_refused(name) and string.sub(name, 1, -2) or name end
local function refused_lane(name) return queue_lane(name) .. '~' end
local function id_in(its_member) return string.match(its_member, '^[^:]*:%d*:(.*)$') end

-- A line: its state (`load`), and the names of its other keys.
local function line_at(keys, k)
  local l = load(keys[(k or 0) + 1])
  l.line, l.tickets, l.lanes, l.due, l.room, l.started = unpack(keys, (k or 0) + 2, (k or 0) + 7)
  return l
end

local function ticket_from(value)
  local lane, place, cost, parked, let_go_at, tries, not_before =
    string.match(value or '', '^([^:]+):(%d+):(%d+):([01]):(%d+):(%d+):(%d+)$')
  return lane and { lane = lane, place = tonumber(place), cost = tonumber(cost), parked = parked == '1',
    let_go_at = tonumber(let_go_at), tries = tonumber(tries), not_before = tonumber(not_before) }
end

local function ticket_at(l, id) return ticket_from(redis.call('HGET', l.tickets, id)) end

local function write_ticket(l, id, t)
  redis.call('HSET', l.tickets, id, string.format('%s:%.0f:%.0f:%d:%.0f:%d:%.0f', t.lane, t.place, t.cost,
    t.parked and 1 or 0, t.let_go_at, t.tries, t.not_before))
end

-- All lanes by name, read once. A lane that another version wrote is left out.
local function lanes_of(l)
  if l.by_lane then return l.by_lane end
  l.by_lane = {}
  local found = redis.call('HGETALL', l.lanes)
  for i = 1, #found, 2 do
    local units, parked, gone, heard, way, probe, broker, queue =
      string.match(found[i + 1], '^1:(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):([^:]*):(.*)$')
    if units then
      l.by_lane[found[i]] = { units = tonumber(units), parked = tonumber(parked), gone = tonumber(gone),
        heard_at = tonumber(heard), way = tonumber(way), probe_at = tonumber(probe), broker = broker, queue = queue }
    end
  end
  return l.by_lane
end

-- The lane of that name. It is made if there is none.
local function lane_at(l, name, now)
  local lanes = lanes_of(l)
  lanes[name] = lanes[name]
    or { units = 0, parked = 0, gone = is_refused(name) and REFUSED or 0, heard_at = now, way = 0, probe_at = 0, broker = '', queue = '' }
  return lanes[name]
end

local function write_lanes(l)
  for name, lane in pairs(l.by_lane or {}) do
    if lane.changed then
      redis.call('HSET', l.lanes, name, string.format('1:%.0f:%.0f:%.0f:%.0f:%.0f:%.0f:%s:%s', lane.units,
        lane.parked, lane.gone, lane.heard_at, lane.way, lane.probe_at, lane.broker, lane.queue))
    end
  end
end

-- Add what a ticket counts for to its lane and to the line, or (sign -1) subtract it.
local function count(l, t, sign, now)
  local lane = lane_at(l, t.lane, now or t.place)
  for _, its in pairs(sign > 0 and l.count == 0 and l.by_lane or {}) do its.units, its.parked = 0, 0 end
  lane.units = math.max(lane.units + sign * t.cost, 0)
  if t.parked then lane.parked = math.max(lane.parked + sign, 0) end
  lane.changed, l.touched = true, true
  l.count, l.units = math.max(l.count + sign, 0), math.max(l.units + sign * t.cost, 0)
  if l.count == 0 then l.units = 0 end
end

local function drop(l, id, t)
  redis.call('ZREM', l.line, member(id, t))
  redis.call('HDEL', l.tickets, id)
  redis.call('ZREM', l.due, id)
  redis.call('HDEL', l.room, id)
  count(l, t, -1)
end

-- Drop dead tickets (if `write`), and note the tasks that are late, because these do not count as ahead. A late task
-- that costs more than the average `saves`: its cells are kept for as long as it would take to save them up again.
local function purge(l, now, grace, write)
  l.count, l.late = redis.call('ZCARD', l.line), {}
  if l.count == 0 then
    for _, lane in pairs(l.units > 0 and lanes_of(l) or {}) do
      if lane.units + lane.parked > 0 then lane.units, lane.parked, lane.changed = 0, 0, true end
    end
    l.units = 0
    return
  end
  local found = redis.call('ZRANGEBYSCORE', l.due, '-inf', text(now + math.max(grace - LATE_US, 0)), 'WITHSCORES', 'LIMIT', 0, PURGE)
  for i = 1, #found, 2 do
    local id, deadline = found[i], tonumber(found[i + 1])
    local t = ticket_at(l, id)
    if t and deadline <= now and write then drop(l, id, t)
    elseif not t and write then redis.call('ZREM', l.due, id)
    elseif t then
      local promise, saves = deadline - grace, l.algorithm and deadline > now and t.cost * l.count > l.units
      saves = saves and now - promise < LATE_US + l.algorithm.pace(l.r, t.cost)
      l.late[#l.late + 1] = { id = id, t = t, promise = promise, saves = saves }
    end
  end
end

-- Mark a lane as gone if several of its tasks are late, or one is very late, and no other task of the lane has come
-- since: its workers died, or its queue was emptied. The next task that comes opens it again (`hear`).
local function notice_gone(l, now)
  local missed = {}
  for _, one in ipairs(l.late) do
    local lane = lane_at(l, one.t.lane, now)
    if lane.heard_at < one.promise and now - one.promise > LATE_US + 2 * lane.way and lane.gone <= one.t.place then
      local found = missed[one.t.lane] or { number = 0, since = one.promise }
      found.number, found.since = found.number + 1, math.min(found.since, one.promise)
      missed[one.t.lane] = found
    end
  end
  for name, found in pairs(missed) do
    if found.number >= SILENT or now - found.since >= SILENT_US then
      l.by_lane[name].gone, l.by_lane[name].changed, l.touched = now, true, true
    end
  end
end

-- Note that a task of this lane came (it was let go at `copy`, if that is not ''), so its queue is read. If the task is
-- one of those that were marked as gone, all of them count again. If it joined later, it proves nothing about them, but
-- the parked ones are worth a try at once. Returns whether a releaser should look.
local function hear(l, name, now, place, copy)
  local lane = lane_at(l, queue_lane(name), now)
  local was_gone = lane.gone > 0 and (place < lane.gone or lane.parked > 0)
  -- with a precision of a tenth of a second, so that it need not be written each time
  if lane.gone == 0 and copy == '' and now >= lane.heard_at and now < lane.heard_at + HEARD_US then return false end
  if place < lane.gone then lane.gone = 0 end
  lane.heard_at, lane.probe_at, lane.changed = now, math.min(lane.probe_at, now), true
  if tonumber(copy) then lane.way = math.floor(math.min(math.max(now - copy, 0.8 * lane.way, 0), LONGEST_WAY_US)) end
  return was_gone
end

-- Whether a lane is gone. (Perhaps its queue is only long. A task that goes back there stands behind all tasks in it.)
local function is_gone(l, name)
  local lane = lanes_of(l)[name]
  return lane and lane.gone > 0
end

-- Note that a new task came from the queue of a lane that is gone. A worker reads the queue again, so one of the
-- waiting tasks is offered soon. It is not offered at once, because a long queue brings many new tasks before the first
-- task that was let go. Returns whether there is a task to offer.
local function probe(l, name, now)
  local lane = lanes_of(l)[name]
  if not lane or lane.gone == 0 or lane.parked == 0 or lane.probe_at <= now + NEWS_US then return false end
  lane.probe_at, lane.changed, l.touched = now + NEWS_US, true, true
  return true
end

-- The place in l.line at which the tickets of a lane begin that count as ahead.
local function beginning(name, lane) return '[' .. name .. ':' .. (lane.gone > 0 and sortable(lane.gone) or '') end

-- The first `most` tickets that count as ahead, of all lanes in order: { id, order, lane }.
local function first_in(l, most)
  local found, lanes = {}, 0
  for name, lane in pairs(lanes_of(l)) do
    local all = { beginning(name, lane), '(' .. name .. ';', 'BYLEX', 'LIMIT', 0, most }
    for _, its in ipairs(redis.call('ZRANGE', l.line, unpack(all))) do
      found[#found + 1] = { id = id_in(its), order = string.sub(its, #name + 2), lane = name }
    end
    lanes = lanes + 1
  end
  if lanes > 1 then table.sort(found, function(a, b) return a.order < b.order end) end
  return found
end

-- How many tasks count as ahead of a place (nil: of a new task). `id` and `name`: the ticket at this place and its
-- lane, if there is one.
local function rank_of(l, place, id, name)
  local rank = 0
  for its, lane in pairs(lanes_of(l)) do
    local to = '(' .. its .. ';'
    if place then to = '(' .. its .. ':' .. sortable(place) .. (its == name and ':' .. id or '') end
    rank = rank + redis.call('ZLEXCOUNT', l.line, beginning(its, lane), to)
  end
  for _, one in ipairs(l.late) do
    local before = not place or one.t.place < place or one.t.place == place and one.t.lane == name and one.id < id
    if before and not one.saves and lane_at(l, one.t.lane).gone <= one.t.place then rank = rank - 1 end
  end
  return math.max(rank, 0)
end

-- The units of the tasks ahead (exact for the first LOOK tasks, then by their mean), and the largest cost among them. A
-- task that was let go more than a second ago is not waited for.
local function units_ahead(l, rank, place, id, now)
  if rank == 0 then return 0, 0 end
  if l.units == l.count then return rank, 1 end -- each task costs one unit
  local late, sum, most, seen = {}, 0, 0, 0
  for _, one in ipairs(l.late) do late[one.id] = not one.saves end
  local order = place and sortable(place) .. ':' .. (id or '')
  for _, one in ipairs(first_in(l, LOOK)) do
    if seen < math.min(rank, LOOK) and not late[one.id] and (not order or one.order < order) then
      local t = ticket_at(l, one.id)
      local cost = t and t.cost or 1
      if t and t.parked and t.let_go_at > 0 and math.abs(now - t.let_go_at) > LATE_US then cost = 0 end
      sum, most, seen = sum + cost, math.max(most, cost), seen + 1
    end
  end
  return sum + math.floor((rank - seen) * l.units / l.count), most
end

-- How long the keys of a line must live, milliseconds. 0: for ever, because a task is parked.
local function lifetime(l)
  if redis.call('EXISTS', l.room) == 1 then return 0 end
  return math.max(redis.call('PTTL', l.due), 1000)
end

local function expire(l, ttl_ms)
  for _, key in ipairs({ l.line, l.tickets, l.lanes }) do
    if ttl_ms == 0 then redis.call('PERSIST', key) else redis.call('PEXPIRE', key, text(ttl_ms)) end
  end
end

local function keep(key, ttl_ms)
  if redis.call('PTTL', key) < ttl_ms then redis.call('PEXPIRE', key, text(ttl_ms)) end
end

-- Take a place, or keep the place of the ticket `former`, in the lane of the queue from which the task comes now.
local function take_place(l, id, t, former, now)
  local moved = former and former.lane ~= t.lane
  local same = former and not moved and former.parked == t.parked and former.cost == t.cost
  if former then
    t.place, t.tries = former.place, former.tries
    if moved then redis.call('ZREM', l.line, member(id, former)) end
    if not same then count(l, former, -1) end
    if former.parked and not t.parked then redis.call('HDEL', l.room, id) end
  end
  if not former or moved then redis.call('ZADD', l.line, 0, member(id, t)) end
  if same and former.let_go_at == 0 then return end
  if not same then count(l, t, 1, now) end
  write_ticket(l, id, t)
end

-- Take or keep a place, with a deadline. (The caller must write the lanes and set the expiry after this.)
local function join(l, id, t, former, deadline, ttl_ms, now)
  t.parked = false
  take_place(l, id, t, former, now)
  redis.call('ZADD', l.due, text(deadline), id)
  if redis.call('PTTL', l.due) < ttl_ms then
    redis.call('PEXPIRE', l.due, text(ttl_ms))
    l.extended = true
  end
end

-- Take or keep a place, and store the message here. There is no deadline and no expiry until the task is let go.
local function park(l, id, t, former, message, now)
  t.parked = true
  take_place(l, id, t, former, now)
  if former then redis.call('ZREM', l.due, id) end
  redis.call('HSET', l.room, id, message)
  l.extended = redis.call('HLEN', l.room) == 1
end

-- Called after a task has left or was let go. If no task is parked any more, the keys may expire again (the state not
-- before its bucket is full).
local function settle_expiry(l, now, slack)
  if redis.call('EXISTS', l.room) == 1 then return end
  local ttl = lifetime(l)
  expire(l, ttl)
  redis.call('PEXPIRE', l.key, text(math.max(ttl, life(l, now, slack) + 1)))
end

-- Note when releasers should visit a line (0: not at all; `sooner`: only if this is earlier than the visit that is
-- noted). Foreign data at the index's key must not undo a decision half-way, so errors are ignored here; releasers make
-- the index anew.
local function note_visit(index, l, at, sooner)
  if not index then return end
  if at <= 0 then redis.pcall('ZREM', index, l) return end
  local score = sooner and redis.pcall('ZSCORE', index, l)
  local known = type(score) == 'string' and tonumber(score) or nil
  if not known or at < known then redis.pcall('ZADD', index, text(at), l) end
end

-- Whether another copy of this message has started. A message may be let go twice (after a crash in between). This copy
-- is one too many if another copy started after this one was let go. If this copy was let go later than that start, it
-- belongs to a retry with the same id.
local function started_already(l, id, copy)
  local other, at = string.match(redis.call('HGET', l.started, id) or '', '^(%d+):(%d+)$')
  return other and other ~= copy and tonumber(copy) <= tonumber(at)
end

local function note_start(l, id, copy, now)
  if redis.call('HEXISTS', l.started, id) == 1 then
    redis.call('HSET', l.started, id, copy .. ':' .. text(now))
  end
end
