--@ state line
-- Take a task out of its line, and its message out of the room if it is parked.
-- KEYS  state, line, tickets, lanes, due, room, started
-- ARGV  1 now_us ('' = the server's clock)   2 ticket   3 '' = in any case; 'parked' = only if its message lies here
--       and is not being let go; 'came' = the task has come and starts elsewhere   4 lease_us of a claim
-- Reply integer: 0 if the task was not there, 2 if its lane was gone and is back (releasers should visit the line),
--       else 1.
local now, slack = clock(ARGV[1])
local l, id = line_at(KEYS), ARGV[2]
l.count = redis.call('ZCARD', l.line)
local t, units, back = ticket_at(l, id), l.units, false
if ARGV[3] == 'parked' and not (t and t.parked and math.abs(now - t.let_go_at) >= tonumber(ARGV[4])) then return 0 end
if ARGV[3] == 'came' and t then back = hear(l, t.lane, now, t.place, t.let_go_at > 0 and text(t.let_go_at) or '') end
if t then
  drop(l, id, t)
  write_lanes(l)
  if units > 0 then save(l) end
  settle_expiry(l, now, slack)
end
return back and 2 or t and 1 or 0
