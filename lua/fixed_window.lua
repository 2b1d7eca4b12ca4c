-- The arithmetic of src/fleetlimit/algorithms/fixed_window.py. Rule: limit, guard_us, then the grid: per_us,
-- offset_us, utc_us, change_us (0: none), later_us. State: when the window began, units used in it.
local window = { letter = 'f', size = 7, grows = 2, whole = 10, below = 3, pattern = '^1f:%d+:%d+:%-?%d+:%d+$' }

local function number_at(r, at)
  local ahead = r[6] ~= 0 and at >= r[6] and r[7] or r[5]
  return math.floor((at + ahead - r[4]) / r[3])
end

local function start_of(r, number)
  local at = number * r[3] + r[4]
  if r[6] == 0 or at - r[5] < r[6] then return at - r[5] end
  return math.max(r[6], at - r[7])
end

-- the window that takes a start at an instant: the next one during the guard
local function open_at(r, at)
  local number = number_at(r, at)
  return at >= start_of(r, number + 1) - r[2] and number + 1 or number
end

-- when `cost` units after `before` others find room (or now)
local function place(s, r, now, cost, before)
  local number, room = open_at(r, now), r[1]
  cost = math.min(cost, r[1]) -- above a limit that was lowered: in an empty window, and paid in whole
  local counted = s.n and number_at(r, s.n[1])
  if counted and counted >= number then number, room = counted, math.max(0, r[1] - s.n[2]) end
  if before + cost > room then
    local full = math.max(0, before - room)
    number = number + 1 + math.floor(full / r[1])
    if full % r[1] + cost > r[1] then number = number + 1 end
  end
  return math.max(now, start_of(r, number)), number
end

local function put(s, r, number, used)
  s.n, s.full_at = { start_of(r, number), used }, start_of(r, number + 1)
end

-- so many more in a window, or in the later one that is counted already
local function add(s, r, number, cost)
  local counted = s.n and number_at(r, s.n[1])
  if counted and counted >= number then put(s, r, counted, s.n[2] + cost) else put(s, r, number, cost) end
end

function window.clamp(s, r, now)
  if not s.n then return false end
  local number, counted = number_at(r, now), number_at(r, s.n[1])
  -- ahead by more than a booking: the clock stepped back; or another grid's window that has not ended
  local other = counted < number or s.n[1] ~= start_of(r, counted)
  local ahead = counted > number + 1 and s.n[1] - now > LONGEST_SLEEP_US
  local beyond = ahead or other and s.full_at > now
  if beyond then put(s, r, number, s.n[2])
  elseif counted < number then s.n = nil
  else put(s, r, counted, s.n[2]) end
  return beyond
end

function window.look(s, r, now, cost)
  local start, number = place(s, r, now, cost, 0)
  local counted = s.n and number_at(r, s.n[1]) == number
  -- a unit is due, for the sake of those in line, when an even pace would come to it
  local due = start_of(r, number) + window.pace(r, counted and s.n[2] or 0)
  return start - now, now - due
end

function window.wait(s, r, now, cost, before)
  local start = place(s, r, now, cost, before)
  return start - now
end

function window.pace(r, units) return units * math.ceil(r[3] / r[1]) end

function window.spend(s, r, now, cost, sleep)
  add(s, r, open_at(r, now + sleep), cost)
end

function window.delay(s, r, now, late, cost)
  local number = number_at(r, now)
  if number_at(r, now - late) == number then return false end
  window.clamp(s, r, now)
  add(s, r, number, cost)
  return true
end

function window.give_back(s, r, now, cost, spent)
  if not s.n or s.n[1] ~= spent[1] then return false end
  s.n[2] = math.max(0, s.n[2] - cost)
  return true
end

return window
