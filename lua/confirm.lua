--@ state * line room
-- Take the results of claimed messages. A published message is forgotten, and its ticket gets a deadline. For any other
-- message the claim is given back, and after some failed tries the message goes into quarantine.
-- KEYS  state, line, tickets, lanes, due, room, started, bad, and the index of rooms (not on a Cluster)
-- ARGV  1 now_us ('' = the server's clock)   2 grace_us   3 when the messages were claimed   4 tries at most
--       5 our broker   then for each message: ticket; '' = published, else the error; '1' = it counts as a try
-- Reply integers: how many were published, how many went into quarantine, and when to visit the line again (0 = no
--       visit is needed beside those already noted, -1 = none at all: no task of our broker is parked any more).
-- A message that has been parked again since then (with another claim, or none) stays.
local FIRST_US, LONGEST_US = 1000000, 60000000 -- pauses before another try
local now, slack = clock(ARGV[1])
local l, done, bad, visit = room_at(KEYS), 0, 0, math.huge
l.count = redis.call('ZCARD', l.line)
local units = l.units

local function published(id, t)
  done = done + redis.call('HDEL', l.room, id)
  change_lane(l, id, t, queue_lane(t.lane), now)
  count(l, t, -1)
  t.parked = false
  count(l, t, 1)
  write_ticket(l, id, t)
  redis.call('ZADD', l.due, text(now + ARGV[2]), id)
end

local function refused(id, t, why, counts)
  t.tries, t.let_go_at = t.tries + (counts and 1 or 0), 0
  if t.tries >= tonumber(ARGV[4]) then
    bad = bad + 1
    return quarantine(l, id, t, now, why)
  end
  t.not_before = now + math.min(FIRST_US * 2 ^ math.max(t.tries - 1, 0), LONGEST_US)
  visit = math.min(visit, t.not_before)
  if counts and not is_refused(t.lane) then
    change_lane(l, id, t, refused_lane(t.lane), now)
    visit = now -- the tasks behind it need not wait for it any more
  end
  write_ticket(l, id, t)
end

for i = 6, #ARGV, 3 do
  local t = ticket_at(l, ARGV[i])
  if t and t.parked and t.let_go_at == tonumber(ARGV[3]) then
    if ARGV[i + 1] == '' then published(ARGV[i], t) else refused(ARGV[i], t, ARGV[i + 1], ARGV[i + 2] == '1') end
  end
end
write_lanes(l)
if l.units ~= units then save(l) end
keep(l.due, math.ceil(ARGV[2] / 1000) + slack)
settle_expiry(l, now, slack)
local parked = 0
for _, lane in pairs(lanes_of(l)) do
  if lane.broker == ARGV[5] then parked = parked + lane.parked end
end
if visit == math.huge then visit = parked > 0 and 0 or -1 end
if visit ~= 0 then note_visit(KEYS[9], l.key, visit, true) end
return { done, bad, visit }
