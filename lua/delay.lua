--@ gcra
-- A start came later than its cell: push the cells not yet handed out by as much, so that no window
-- that begins with the late start is shorter than it should be.
-- KEYS  state, one per limit (one slot on a Redis Cluster)
-- ARGV  1 now_us ('' = the server's clock)   then per limit: late_us, ticks per us, capacity (ticks)
-- Reply integer: 1. Keeps invariant 1 of gcra.py for starts in place of admissions.
local now, slack = clock(ARGV[1])
for i = 1, #KEYS do
  local tat, ticks, units, ahead_us = read_state(KEYS[i])
  local late, per_us, capacity = tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i]), tonumber(ARGV[3 * i + 1])
  tat = (tat and tat > 0 and tat or now) + late
  if tat > now then
    ahead_us = math.max(ahead_us, tat - now - math.floor(capacity / per_us))
    move_tat(KEYS[i], now, slack, tat, ticks, units, ahead_us)
  end
end
return 1
