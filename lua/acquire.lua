--@ state * line place
-- Decide for one task under one or several limits: all are spent, or none is.
-- KEYS  per limit: state, line, tickets, lanes, due, room, started, override; then the index of rooms of the
--       task's broker (none on a Cluster, where it lies in another slot)
-- ARGV  1 now_us ('' = the server's clock)   2 'ask', or 'look' (write nothing)
--       3 number of limits n   then per limit: rule, cost (units), override ('' = read the key)
--       then, for a caller that may wait: ticket, first_seen_us (0 = a new task), copy ('' = not let go from a room),
--       message to park ('' = none), lane, broker, queue, and in one text, parted by spaces: max_sleep_us
--       (a new task gets a fifth of it), horizon_us, grace_us, expires_in_us (-1 = never), park_after_us, lead_us,
--       hop_us (a countdown takes half of the wait that is left, but at least this long)
-- Reply integers: verdict (1 admitted, 0 denied, 2 denied and parked, -1 the task would
--       expire before its turn and takes no place, -2 another copy has started), wait_us or (admitted) sleep_us,
--       now_us, first_seen_us, when releasers should visit the line of the limit with the longest wait (0 = no visit
--       is needed beside those already noted), then per limit: wait_us, rank, waiting, and as texts the state that was
--       found ('' = none) and the rule in force
-- Keeps invariants 1 to 4 of gcra.py. A denial writes its ticket, and clamps a state that valid admissions cannot have
-- left.
local PER_LIMIT = 8
local n, at = tonumber(ARGV[3]), 3 * ARGV[3] + 3
local ask = { id = ARGV[at + 1] or '', first_seen = tonumber(ARGV[at + 2] or 0) }
ask.copy, ask.message = ARGV[at + 3] or '', ARGV[at + 4] or ''
ask.lane, ask.broker, ask.queue = ARGV[at + 5], ARGV[at + 6], ARGV[at + 7]
ask.now, ask.slack = clock(ARGV[1])
ask.look_only = ARGV[2] == 'look'
local number = string.gmatch(ARGV[at + 8] or '0 0 0 -1 0 0 0', '%S+')
for _, name in ipairs({ 'max_sleep', 'horizon', 'grace', 'expires_in', 'park_after', 'lead', 'hop' }) do
  ask[name] = tonumber(number())
end
ask.verdict, ask.wait, ask.sleep = 1, 0, 0

-- Read all rules before anything is written, because one of them may be foreign.
local limits, rules, known, together = {}, {}, math.huge, math.huge
for i = 1, n do rules[i] = rule_at(ask, PER_LIMIT * i, 3 * i) end
for i = 1, n do limits[i] = examine(ask, PER_LIMIT * (i - 1), 3 * i, rules[i]) end
for i = 1, n > 1 and n or 0 do together = math.min(together, math.max(limits[i].lag, 0) + TOGETHER_US) end
for _, l in ipairs(limits) do
  judge(ask, l, together)
  if l.blocked and l.wait > ask.wait then ask.last, ask.wait = l, l.wait end
  ask.sleep = math.max(ask.sleep, l.lag)
  if l.seen > 0 then known = math.min(known, l.seen) end
end

if ask.verdict == 1 and ask.last then
  ask.verdict = 0
  if ask.id ~= '' then
    if ask.last.ticket then ask.first_seen = ask.last.ticket.place
    elseif ask.first_seen == 0 then ask.first_seen = known < math.huge and known or ask.now end
    local may_park = ask.wait > ask.park_after or is_gone(ask.last, ask.lane)
    if ask.message ~= '' and may_park then ask.verdict = 2 end
    if ask.expires_in >= 0 and ask.wait > ask.expires_in then ask.verdict = -1 end
  end
end

local reply = { ask.verdict, ask.verdict == 1 and ask.sleep or ask.wait, ask.now, ask.first_seen, 0 }
for _, l in ipairs(limits) do
  if not ask.look_only then settle(ask, l) end
  for _, part in ipairs({ l.wait, l.rank, l.count, l.former, l.rule }) do reply[#reply + 1] = part end
end
if ask.id ~= '' and ask.verdict ~= -2 then
  local index, at, line = KEYS[PER_LIMIT * n + 1], visit(ask)
  if at > 0 then note_visit(index, line, at, true) end
  reply[5] = at
end
return reply
