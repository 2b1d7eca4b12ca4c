--@ state *
-- A start came later than its unit: what is not yet handed out moves, or is counted where it started.
-- KEYS  per limit: state, override (one slot on a Redis Cluster)
-- ARGV  1 now_us ('' = the server's clock)   2 late_us   then per limit: rule, cost, override ('' = read
--       the key)
-- Reply integer: 1. Keeps invariant 6 of gcra.py.
local now, slack = clock(ARGV[1])
local late = tonumber(ARGV[2])
for i = 1, #KEYS / 2 do
  local s, a = load(KEYS[2 * i - 1]), 3 * i
  local rule = in_force(KEYS[2 * i], ARGV[a + 2], now, ARGV[a])
  local algorithm, r = rule_of(rule)
  known_as(s, rule)
  if algorithm.delay(s, r, now, late, tonumber(ARGV[a + 1])) then moved(s, now, slack) end
end
return 1
