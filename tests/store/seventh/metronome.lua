-- The arithmetic of metronome.py. Rule: interval_us. State: next_us, ahead_us.
local metronome = { letter = 'm', size = 1, grows = 1, whole = 1010, pattern = '^1m:%d+:%d+:%d+:%d+$' }

local function ahead_of(s, now) return s.n and s.n[1] - now or -math.huge end

local function put(s, next_us, ahead) s.n, s.full_at = { next_us, ahead }, next_us end

function metronome.clamp(s, r, now)
  if not s.n or ahead_of(s, now) <= r[1] + s.n[2] then return false end
  put(s, now + r[1] + s.n[2], s.n[2])
  return true
end

function metronome.look(s, r, now) return math.max(ahead_of(s, now), 0), -ahead_of(s, now) end

function metronome.wait(s, r, now, cost, before) return math.max(ahead_of(s, now), 0) + before * r[1] end

function metronome.pace(r, units) return units * r[1] end

function metronome.spend(s, r, now, cost, sleep)
  local ahead = math.max(ahead_of(s, now), sleep, 0) + cost * r[1]
  put(s, now + ahead, math.max(sleep, ahead - r[1]))
end

function metronome.delay(s, r, now, late)
  local next_us, ahead = s.n and s.n[1] or now, s.n and s.n[2] or 0
  if next_us + late <= now then return false end
  put(s, next_us + late, math.max(ahead, next_us + late - now - r[1]))
  return true
end

function metronome.give_back(s, r, now, cost, spent, former)
  if not s.n or s.n[1] ~= spent[1] or s.n[2] ~= spent[2] then return false end
  if former[1] and former[1] > now then put(s, former[1], former[2]) else s.n, s.full_at = nil, 0 end
  return true
end

return metronome
