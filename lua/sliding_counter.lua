-- The arithmetic of src/fleetlimit/algorithms/sliding_counter.py. Rule: limit, per (ticks), guard (ticks),
-- tick_us, offset_us. State: when the window began, units in it, units in the one before.
local counter = { letter = 'c', size = 5, grows = 3, whole = 10, below = 2, pattern = '^1c:%d+:%d+:%-?%d+:%d+:%d+$' }

local function number_at(r, at) return math.floor((at - r[5]) / (r[2] * r[4])) end
local function start_of(r, number) return number * r[2] * r[4] + r[5] end

-- the window that takes a start at an instant: the next one during the guard
local function open_at(r, at)
  local number = number_at(r, at)
  return at >= start_of(r, number + 1) - r[3] * r[4] and number + 1 or number
end

-- the same from a window on, its own or a later one
local function rolled(r, n, number)
  local later = number - number_at(r, n[1])
  if later == 0 then return { start_of(r, number), n[2], n[3] } end
  return { start_of(r, number), 0, later == 1 and n[2] or 0 }
end

-- what is counted from a window on, or from the later one that is counted already
local function from(r, n, number)
  if not n then return { start_of(r, number), 0, 0 } end
  return rolled(r, n, math.max(number, number_at(r, n[1])))
end

-- how much of a window must be gone for `units` more, ticks
local function gone(r, n, units)
  local room = r[1] - n[2] - units
  if room < 0 or n[3] <= room then return 0 end
  return r[2] - math.floor(room * r[2] / n[3])
end

-- when `cost` units after `before` others may start, now or later, and since when
local function place(s, r, now, cost, before)
  local n = from(r, s.n, open_at(r, now))
  cost = math.min(cost, r[1]) -- above a limit that was lowered: when all is forgotten, and paid in whole
  if before > 0 and n[2] + before + cost > r[1] then
    -- the others fill this window, and whole ones after it
    local each = math.max(1, math.min(r[1] - 1, math.floor(r[1] * r[2] / (r[2] + r[3]))))
    local here = math.min(before, math.max(0, r[1] - (n[3] > 0 and 1 or 0) - n[2]))
    local skipped = math.floor((before - here) / each)
    local later = 1 + skipped * (r[1] == 1 and 2 or 1)
    before = (before - here) % each
    n = { start_of(r, number_at(r, n[1]) + later), 0, skipped > 0 and each or n[2] + here }
  end
  local at, ready
  for _ = 1, 3 do
    ready = n[1] + gone(r, n, before + cost) * r[4]
    at = math.max(now, ready)
    local number = number_at(r, n[1])
    if n[2] + before + cost <= r[1] and open_at(r, at) == number then break end
    n, before = rolled(r, n, number + 1), 0
  end
  return at, ready
end

local function put(s, r, n)
  s.n, s.full_at = n, start_of(r, number_at(r, n[1]) + 2)
end

function counter.clamp(s, r, now)
  if not s.n then return false end
  local number, counted = number_at(r, now), number_at(r, s.n[1])
  -- as of a fixed window
  local other = counted < number - 1 or s.n[1] ~= start_of(r, counted)
  local ahead = counted > number + 1 and s.n[1] - now > LONGEST_SLEEP_US
  local beyond = ahead or other and s.full_at > now
  if beyond then put(s, r, { start_of(r, number), s.n[2], s.n[3] })
  elseif counted < number - 1 then s.n = nil
  else put(s, r, rolled(r, s.n, math.max(number, counted))) end
  return beyond
end

function counter.look(s, r, now, cost)
  local at, ready = place(s, r, now, cost, 0)
  return at - now, now - (at > now and at or ready)
end

function counter.wait(s, r, now, cost, before) return place(s, r, now, cost, before) - now end

function counter.pace(r, units) return units * math.ceil(r[2] * r[4] / r[1]) end

function counter.spend(s, r, now, cost, sleep)
  local n = from(r, s.n, open_at(r, now + sleep))
  put(s, r, { n[1], n[2] + cost, n[3] })
end

function counter.delay(s, r, now, late, cost)
  local number = number_at(r, now)
  if number_at(r, now - late) == number then return false end
  counter.clamp(s, r, now)
  local n = from(r, s.n, number)
  put(s, r, { n[1], n[2] + cost, n[3] })
  return true
end

function counter.give_back(s, r, now, cost, spent)
  local later = s.n and number_at(r, s.n[1]) - number_at(r, spent[1])
  if later ~= 0 and later ~= 1 then return false end
  local which = later == 0 and 2 or 3
  s.n[which] = math.max(0, s.n[which] - cost)
  return true
end

return counter
