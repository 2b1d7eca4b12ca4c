--@ state *
-- Note that a start came later than its unit. Units that are not handed out yet move by as much, or (in algorithms that
-- count starts) the unit is counted at the time of its start.
-- KEYS  per limit: state, override (one slot on a Redis Cluster)
-- ARGV  1 now_us ('' = the server's clock)   2 late_us   then per limit: rule, cost, override ('' = read
--       the key)
-- Reply integer: 1. Keeps invariant 6 of gcra.py.
local now, slack = clock(ARGV[1])
local late = tonumber(ARGV[2])
local rules = {}
for i = 1, #KEYS / 2 do -- read all of them before anything is written, because one may be foreign
  rules[i] = in_force(KEYS[2 * i], ARGV[3 * i + 2], now, ARGV[3 * i])
  rule_of(rules[i])
end
for i, rule in ipairs(rules) do
  local s, algorithm, r = load(KEYS[2 * i - 1]), rule_of(rule)
  if not known_as(s, rule) and algorithm.delay(s, r, now, late, tonumber(ARGV[3 * i + 1])) then
    moved(s, now, slack)
  end
end
return 1
