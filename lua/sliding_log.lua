-- The arithmetic of src/fleetlimit/algorithms/sliding_log.py. Rule: limit, per_us.
-- State: head, live, newest_us, shift_us, ahead_us, size. Stored as "1l", 8 doubles (units, full_at_us, and these six),
-- which are HEADER bytes, and behind them the ring of starts: 8 bytes for each unit.
local log = { letter = 'l', size = 2, grows = 2, whole = 1010, holds_more = true }
local MOVED = 1000 -- a late start moves so many younger entries at most

function log.load(s, value)
  if #value ~= HEADER then return false end
  s.n = { struct.unpack('>dddddddd', value, 3) }
  s.units, s.full_at = table.remove(s.n, 1), table.remove(s.n, 1)
  local head, live, size = s.n[1], s.n[2], s.n[6]
  return s.units >= 0 and head >= 0 and head < size and live >= 1 and live <= size and size <= 1000000
end

function log.save(s)
  redis.call('SETRANGE', s.key, 0, '1l' .. struct.pack('>dddddddd', s.units, s.full_at, unpack(s.n, 1, 6)))
end

local function at_place(n, i) return HEADER + 8 * ((n[1] + i) % n[6]) end

-- when the i-th oldest unit started, from 0
local function entry(s, i)
  local from = at_place(s.n, i)
  return struct.unpack('>d', redis.call('GETRANGE', s.key, from, from + 7)) + s.n[4]
end

-- entries i, i + 1, ... all at one instant: two writes, however many
local function put(s, i, count, at)
  local value, place = struct.pack('>d', at - s.n[4]), (s.n[1] + i) % s.n[6]
  local before = math.min(count, s.n[6] - place) -- those up to the ring's end
  redis.call('SETRANGE', s.key, HEADER + 8 * place, string.rep(value, before))
  if count > before then redis.call('SETRANGE', s.key, HEADER, string.rep(value, count - before)) end
end

-- the same entries in a ring of another size, its head first
local function resize(s, size)
  local before = math.min(s.n[2], s.n[6] - s.n[1]) -- those up to the ring's end
  local entries = redis.call('GETRANGE', s.key, at_place(s.n, 0), at_place(s.n, 0) + 8 * before - 1)
  if s.n[2] > before then
    entries = entries .. redis.call('GETRANGE', s.key, HEADER, HEADER + 8 * (s.n[2] - before) - 1)
  end
  redis.call('SETRANGE', s.key, HEADER, entries)
  s.n[1], s.n[6] = 0, size
end

-- how many of the oldest have run out: in steps that double, then halve
local function gone(s, r, now)
  local function out(count) return entry(s, count - 1) + r[2] <= now end
  if not out(1) then return 0 end
  local low, step = 1, 1
  while low + step < s.n[2] and out(low + step) do low, step = low + step, 2 * step end
  while step > 1 do
    step = step / 2
    if low + step < s.n[2] and out(low + step) then low = low + step end
  end
  return low
end

function log.clamp(s, r, now)
  if not s.n then return false end
  local back = s.n[3] - now - s.n[5]
  if back > 0 then s.n[3], s.n[4] = s.n[3] - back, s.n[4] - back end
  s.full_at = s.n[3] + r[2]
  if s.full_at <= now then
    s.n = nil
    return false
  end
  local over = math.max(gone(s, r, now), s.n[2] - r[1])
  s.n[1], s.n[2] = (s.n[1] + over) % s.n[6], s.n[2] - over
  return back > 0
end

function log.look(s, r, now, cost)
  if not s.n then return 0, math.huge end
  local lag = log.wait(s, r, now, cost, 0)
  return lag, lag > 0 and -lag or now - s.n[3] - log.pace(r, 1)
end

function log.wait(s, r, now, cost, before)
  local live = s.n and s.n[2] or 0
  local over = math.ceil(live + before + cost - r[1])
  if over <= 0 then return 0 end
  local rounds = math.max(0, math.ceil((over - live) / r[1]))
  local followed = over - rounds * r[1]
  if not s.n or followed <= 0 then return rounds * r[2] end
  return entry(s, followed - 1) + (rounds + 1) * r[2] - now
end

function log.pace(r, units) return units * math.ceil(r[2] / r[1]) end

function log.spend(s, r, now, cost, sleep)
  local at = now + sleep
  if s.n then at = math.max(at, s.n[3]) else s.n = { 0, 0, 0, 0, 0, r[1] } end
  if s.n[6] ~= r[1] then resize(s, r[1]) end
  local extra = math.max(0, s.n[2] + cost - r[1])
  s.n = { (s.n[1] + extra) % r[1], s.n[2] + cost - extra, at, s.n[4], math.max(0, at - now), r[1] }
  put(s, s.n[2] - cost, cost, at)
  s.full_at = at + r[2]
end

function log.delay(s, r, now, late, cost)
  log.clamp(s, r, now)
  if not s.n then
    log.spend(s, r, now, cost, 0)
    return true
  end
  if s.n[6] ~= r[1] then resize(s, r[1]) end
  local at, live = math.max(now, s.n[3]), s.n[2]
  local younger = live
  while younger > math.max(0, live - MOVED) and entry(s, younger - 1) > now - late do younger = younger - 1 end
  local first = math.max(0, younger - cost)
  for i = younger, live - 1 do put(s, first + i - younger, 1, entry(s, i)) end
  local kept = first + live - younger
  local extra = math.max(0, kept + cost - r[1])
  put(s, kept, cost, at)
  s.n = { (s.n[1] + extra) % r[1], kept + cost - extra, at, s.n[4], math.max(s.n[5], at - now), r[1] }
  s.full_at = at + r[2]
  return true
end

function log.give_back(s, r, now, cost, spent)
  if not s.n then return false end
  for i = 1, 5 do
    if s.n[i] ~= spent[i] then return false end
  end
  if s.n[5] > 0 then return false end -- booked ahead: in the place of one that has not run out
  s.n[2] = s.n[2] - cost
  if s.n[2] <= 0 then s.n = nil else s.n[3] = entry(s, s.n[2] - 1) end
  if s.n then s.full_at = s.n[3] + r[2] else s.full_at = 0 end
  return true
end

return log
