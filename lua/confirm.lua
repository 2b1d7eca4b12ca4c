--@ state * line room
-- What became of claimed messages: published (they are forgotten, and their tickets get a deadline), or not (the
-- claim is given back, and after some tries the message lies in quarantine).
-- KEYS  state, line, tickets, lanes, due, room, started, bad, and the index of rooms (not on a Cluster)
-- ARGV  1 now_us ('' = the server's clock)   2 grace_us   3 when they were claimed   4 tries at most   5 our broker
--       then for each: ticket; '' = published, else why not; '1' = that counts as a try
-- Reply integers: how many were published, in quarantine, and when to visit again for those given back (0 = as
--       is known already, -1 = not at all: nothing of ours is parked any more). One that has been parked again since (another claim, or none) stays.
local FIRST_US, LONGEST_US = 1000000, 60000000 -- pauses before another try
local now, slack = clock(ARGV[1])
local l, done, bad, visit = room_at(KEYS), 0, 0, math.huge
l.count = redis.call('ZCARD', l.line)
local units = l.units

local function published(id, t)
  done = done + redis.call('HDEL', l.room, id)
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
