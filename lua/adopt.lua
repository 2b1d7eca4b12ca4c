--@ state line
-- Hand the tasks that are parked for one broker to the workers of another. Only the lanes name the broker.
-- KEYS  state, line, tickets, lanes, due, room, started
-- ARGV  1 now_us ('' = the server's clock)   2 the broker for which they were parked   3 the other broker
-- Reply integer: how many tasks are parked in these lanes.
local now = clock(ARGV[1])
local l, parked = line_at(KEYS), 0
for name, lane in pairs(lanes_of(l)) do
  if lane.broker == ARGV[2] then
    lane.broker, lane.gone, lane.heard_at, lane.changed = ARGV[3], is_refused(name) and REFUSED or 0, now, true
    parked = parked + lane.parked
  end
end
write_lanes(l)
return parked
