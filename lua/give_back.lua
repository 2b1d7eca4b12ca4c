--@ state *
-- Undo an admission whose run did not start, unless this would admit another run too early (`give_back` of the
-- algorithm).
-- KEYS  state
-- ARGV  1 now_us ('' = the server's clock)   2 rule   3 cost   then the algorithm's numbers ('' = none):
--       4 those that the admission left, 5 those that it found
-- Reply integer: 1 given back, 0 the units are forfeit. Keeps invariant 5 of gcra.py.
local now, slack = clock(ARGV[1])
local s, algorithm, r = load(KEYS[1]), rule_of(ARGV[2])
if not s.n or s.kind ~= string.sub(ARGV[2], 1, 1) then return 0 end
if not algorithm.give_back(s, r, now, tonumber(ARGV[3]), numbers_of(ARGV[4]), numbers_of(ARGV[5])) then
  return 0
end
moved(s, now, slack)
return 1
