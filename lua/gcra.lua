-- Prelude of every script: the clock, the stored state, the arithmetic of src/fleetlimit/gcra.py.
--
-- State, one string per line: "<tat_us>" or "<tat_us>:<tat_ticks>:<units>:<ahead_us>"
--   tat_us     when the bucket is full again, microseconds   tat_ticks  what is beyond that, ticks
--   units      sum of the costs waiting in the line (0: nobody waits, the line is not looked at)
--   ahead_us   how far ahead the last admission was spent for a sleep in place
-- Numbers are doubles and tostring() keeps 14 digits: times are written with %.0f.

local SLACK_MS = 60000 -- an injected clock does not move with the server's expiry

-- now_us from the server's clock, or the injected one; and the slack for a TTL
local function clock(injected)
  if injected ~= '' then return tonumber(injected), SLACK_MS end
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2], 0
end

-- tat_us (nil: full bucket), tat_ticks, units, ahead_us
local function read_state(key)
  local value = redis.call('GET', key)
  if not value then return nil, 0, 0, 0 end
  if string.find(value, '^%d+$') then return tonumber(value), 0, 0, 0 end
  local tat, ticks, units, ahead = string.match(value, '^(%d+):(%d+):(%d+):(%d+)$')
  if not tat then error('FLEETLIMIT not a state at key ' .. key) end
  return tonumber(tat), tonumber(ticks), tonumber(units), tonumber(ahead)
end

local function write_state(key, tat, ticks, units, ahead, ttl_ms)
  local value = string.format('%.0f', tat)
  if ticks + units + ahead > 0 then
    value = string.format('%.0f:%.0f:%.0f:%.0f', tat, ticks, units, ahead)
  end
  redis.call('SET', key, value, 'PX', string.format('%.0f', ttl_ms))
end

-- the state as far as an honest one can be (clamped in gcra.py)
local function clamped(tat, ticks, ahead_us, now, per_us, capacity)
  local most = capacity + ahead_us * per_us
  if not tat or (tat - now) * per_us + ticks <= most then return tat, ticks end
  return now + math.floor(most / per_us), most % per_us
end

-- ahead, lag, idle in ticks (Look in gcra.py)
local function look(tat, ticks, now, emission, per_us, capacity, cost)
  local need = cost * emission - capacity
  if not tat then return 0, need, math.huge end
  local raw = (tat - now) * per_us + ticks
  local ahead = math.max(raw, 0)
  return ahead, ahead + need, -(raw + need)
end
