--@ state *
-- Undo an admission that did not start, where that lets nobody in too early (`give_back` of the algorithm).
-- KEYS  state
-- ARGV  1 now_us ('' = the server's clock)   2 rule   3 cost   4 what the admission left, 5 what it found
--       ('' = nothing): the algorithm's numbers
-- Reply integer: 1 given back, 0 forfeit. Keeps invariant 5 of gcra.py.
local now, slack = clock(ARGV[1])
local s, algorithm, r = load(KEYS[1]), rule_of(ARGV[2])
if not s.n or s.kind ~= string.sub(ARGV[2], 1, 1) then return 0 end
if not algorithm.give_back(s, r, now, tonumber(ARGV[3]), numbers_of(ARGV[4]), numbers_of(ARGV[5])) then
  return 0
end
moved(s, now, slack)
return 1
