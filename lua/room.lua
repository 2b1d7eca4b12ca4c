-- Prelude of scripts that let parked tasks go.
-- l.bad  hash of the quarantine: ticket -> '<lane>:<place>:<cost>:<when>:<broker>:<why>\n<value in the room>'

local NO_OVERRIDE = FORM .. '::0'

local function room_at(keys)
  local l = line_at(keys)
  l.bad = keys[8]
  return l
end

-- Move a message from the room into quarantine, with the reason.
local function set_aside(l, id, t, now, why)
  local lane, message = lanes_of(l)[t.lane], redis.call('HGET', l.room, id) or ''
  redis.call('HSET', l.bad, id, string.format('%s:%.0f:%.0f:%.0f:%s:%s\n%s', queue_lane(t.lane), t.place, t.cost, now,
    lane and lane.broker or '', (string.gsub(why, '\n', ' ')), message))
  redis.call('HDEL', l.room, id)
end

-- The same, and take its task out of the line.
local function quarantine(l, id, t, now, why)
  set_aside(l, id, t, now, why)
  drop(l, id, t)
end

-- Move a parked task to another lane of the same broker; its place stays the same.
local function change_lane(l, id, t, name, now)
  local from, to = lane_at(l, t.lane, now), lane_at(l, name, now)
  if from == to then return end
  to.broker, to.queue = from.broker, from.queue
  redis.call('ZREM', l.line, member(id, t))
  count(l, t, -1)
  t.lane = name
  redis.call('ZADD', l.line, 0, member(id, t))
  count(l, t, 1)
end

-- Whether a later version wrote this message.
local function is_newer(message)
  local form = string.match(message or '', '^(%d+):')
  return form and form ~= FORM
end

-- Walk the tickets of a broker's lanes, all lanes in one order. Each call of the result gives a ticket's id, the
-- ticket, and its lane (`lane.left = nil` ends that lane). Before that, lanes of brokers without workers are marked as
-- gone, and the mark is removed from lanes whose broker has workers again.
local function walk_of(l, broker, alive, chunk)
  alive = ' ' .. alive .. ' '
  local ours = {}
  for name, lane in pairs(lanes_of(l)) do
    lane.ours = lane.broker == broker
    local there = lane.ours or lane.broker == '' or string.find(alive, ' ' .. lane.broker .. ' ', 1, true)
    if there and lane.gone == NOBODY then lane.gone, lane.changed = 0, true
    elseif not there and lane.gone < NOBODY then lane.gone, lane.changed = NOBODY, true end
    if lane.ours then
      lane.name, lane.from, lane.to, lane.left = name, '[' .. name .. ':', '(' .. name .. ';', {}
      ours[#ours + 1] = lane
    end
  end
  local function fill(lane)
    if lane.at and lane.at <= #lane.left or lane.ended then return end
    lane.left, lane.at = redis.call('ZRANGE', l.line, lane.from, lane.to, 'BYLEX', 'LIMIT', 0, chunk), 1
    lane.ended = #lane.left < chunk
    if #lane.left == 0 then return end
    lane.from = '(' .. lane.left[#lane.left]
    local ids = {}
    for i, its in ipairs(lane.left) do ids[i] = id_in(its) or '' end
    lane.known, lane.ids = redis.call('HMGET', l.tickets, unpack(ids)), ids
  end
  return function()
    local first, order
    for _, lane in ipairs(ours) do
      if lane.left then fill(lane) end
      local its = lane.left and lane.left[lane.at]
      local place = its and string.match(its, ':(.*)$')
      if place and (not order or place < order) then first, order = lane, place end
    end
    if not first then return nil end
    local i = first.at
    first.at, first.its = i + 1, first.left[i]
    return first.ids[i], ticket_from(first.known[i]), first
  end
end
