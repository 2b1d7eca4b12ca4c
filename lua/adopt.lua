--@ state * line
-- Hand the tasks that are parked for one broker to another one's workers: only the lanes say whose they are.
-- KEYS  state, line, tickets, lanes, due, room, started
-- ARGV  1 now_us ('' = the server's clock)   2 the broker they were parked for   3 the other one
-- Reply integer: how many are parked in these lanes.
local now = clock(ARGV[1])
local l, parked = line_at(KEYS), 0
for _, lane in pairs(lanes_of(l)) do
  if lane.broker == ARGV[2] then
    lane.broker, lane.gone, lane.heard_at, lane.changed = ARGV[3], 0, now, true
    parked = parked + lane.parked
  end
end
write_lanes(l)
return parked
