--@ gcra
-- Undo an admission that did not start, while nothing else was admitted since (gcra.py, give_back).
-- KEYS  state
-- ARGV  1 now_us ('' = the server's clock)   2, 3 tat_us and ticks that the admission wrote
--       4, 5, 6 the former tat_us (0 = there was none), ticks and ahead_us
-- Reply integer: 1 given back, 0 forfeit. Keeps invariant 5 of gcra.py.
local now, slack = clock(ARGV[1])
local tat, ticks, units = read_state(KEYS[1])
if not tat or tat ~= tonumber(ARGV[2]) or ticks ~= tonumber(ARGV[3]) then return 0 end
local former, former_ticks, ahead_us = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
if former <= now then former, former_ticks, ahead_us = 0, 0, 0 end -- full again by now
if former == 0 and units == 0 then redis.call('DEL', KEYS[1]) return 1 end
move_tat(KEYS[1], now, slack, former, former_ticks, units, ahead_us)
return 1
