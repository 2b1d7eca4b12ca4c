--@ gcra
-- A start came later than its cell: push the cells not yet handed out by as much, so that no window
-- that begins with the late start is shorter than it should be.
-- KEYS  per limit: state, override (one slot on a Redis Cluster)
-- ARGV  1 now_us ('' = the server's clock)   2 late_us   then per limit: emission (ticks), ticks per us,
--       capacity (ticks), override ('' = read the key)
-- Reply integer: 1. Keeps invariant 6 of gcra.py.
local now, slack = clock(ARGV[1])
local late = tonumber(ARGV[2])
for i = 1, #KEYS / 2 do
  local key, a = KEYS[2 * i - 1], 4 * i - 2
  local _, per_us, capacity = in_force(KEYS[2 * i], ARGV[a + 4], now,
    tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3]))
  local tat, ticks, units, ahead_us = read_state(key)
  tat = (tat and tat > 0 and tat or now) + late
  if tat > now then
    ahead_us = math.max(ahead_us, tat - now - math.floor(capacity / per_us))
    move_tat(key, now, slack, tat, ticks, units, ahead_us)
  end
end
return 1
