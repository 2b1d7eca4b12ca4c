-- The arithmetic of src/fleetlimit/algorithms/gcra.py. Rule: emission (ticks), ticks per us, capacity (ticks).
-- State: tat_us, tat_ticks (what is beyond that), ahead_us (by how much the tat may exceed the capacity). Stored as
-- "1:<tat_us>" when there is no more to say, else as "1g:<units>:<tat_us>:<tat_ticks>:<ahead_us>".
-- Keeps invariants 1 to 6 of gcra.py.
local gcra = { letter = 'g', size = 3, grows = 1, whole = 1010 }

function gcra.load(s, value)
  local tat = string.match(value, '^1:(%d+)$')
  if tat then
    s.full_at = tonumber(tat)
    s.n = { s.full_at, 0, 0 }
    return true
  end
  local units, ticks, ahead
  units, tat, ticks, ahead = string.match(value, '^1g:(%d+):(%d+):(%d+):(%d+)$')
  if not units then return false end
  s.units, s.full_at = tonumber(units), tonumber(tat)
  s.n = { s.full_at, tonumber(ticks), tonumber(ahead) }
  return true
end

function gcra.save(s)
  if s.units + s.n[2] + s.n[3] > 0 then
    return string.format('1g:%.0f:%.0f:%.0f:%.0f', s.units, s.n[1], s.n[2], s.n[3])
  end
  return '1:' .. text(s.n[1])
end

-- ticks that stand before a newcomer, and until `cost` units exist
local function standing(s, r, now, cost)
  local raw = s.n and (s.n[1] - now) * r[2] + s.n[2] or -math.huge
  local need = math.min(cost * r[1], r[3]) - r[3]
  return math.max(raw, 0), math.max(raw, 0) + need, -(raw + need)
end

-- the state as far as an honest one can be; whether it was beyond
function gcra.clamp(s, r, now)
  local most = r[3] + (s.n and s.n[3] or 0) * r[2]
  if not s.n or (s.n[1] - now) * r[2] + s.n[2] <= most then return false end
  s.n = { now + math.floor(most / r[2]), most % r[2], s.n[3] }
  s.full_at = s.n[1]
  return true
end

function gcra.look(s, r, now, cost)
  local _, lag, idle = standing(s, r, now, cost)
  return math.ceil(lag / r[2]), math.floor(idle / r[2])
end

function gcra.wait(s, r, now, cost, before)
  local _, lag = standing(s, r, now, cost)
  return math.ceil((lag + before * r[1]) / r[2])
end

function gcra.pace(r, units) return math.ceil(units * r[1] / r[2]) end

function gcra.spend(s, r, now, cost, sleep)
  local ticks = math.max(standing(s, r, now, cost), sleep * r[2]) + cost * r[1]
  s.n = { now + math.floor(ticks / r[2]), ticks % r[2],
    math.max(sleep, math.ceil((ticks - r[3]) / r[2])) }
  s.full_at = s.n[1]
end

function gcra.delay(s, r, now, late)
  local n = s.n or { now, 0, 0 }
  local tat = n[1] + late
  if tat <= now then return false end
  s.n = { tat, n[2], math.max(n[3], tat - now - math.floor(r[3] / r[2])) }
  s.full_at = tat
  return true
end

function gcra.give_back(s, r, now, cost, spent, former)
  if not s.n or s.n[1] ~= spent[1] or s.n[2] ~= spent[2] then return false end
  s.n = former[1] and former[1] > now and former or nil -- else it is full again by now
  s.full_at = s.n and s.n[1] or 0
  return true
end

return gcra
