-- Prelude of the other scripts: the clock, the stored state, the arithmetic of src/fleetlimit/gcra.py.
--
-- State, one string per line: "<tat_us>" or "<tat_us>:<tat_ticks>:<units>:<ahead_us>"
--   tat_us     when the bucket is full again, microseconds   tat_ticks  what is beyond that, ticks
--   units      sum of the costs waiting in the line (0: nobody waits, the line is not looked at)
--   ahead_us   by how much the tat may exceed the capacity: the last admission's sleep in place
-- Override, one string per limit: "<emission>:<ticks per us>:<capacity>:<pause_until_us>", 0 = none
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

-- ttl_ms 0: for ever (somebody is parked)
local function write_state(key, tat, ticks, units, ahead, ttl_ms)
  local value = string.format('%.0f', tat)
  if ticks + units + ahead > 0 then
    value = string.format('%.0f:%.0f:%.0f:%.0f', tat, ticks, units, ahead)
  end
  if ttl_ms == 0 then return redis.call('SET', key, value) end
  redis.call('SET', key, value, 'PX', string.format('%.0f', ttl_ms))
end

-- another tat for a state that stays as it is; while somebody waits, its expiry is the line's
local function move_tat(key, now, slack, tat, ticks, units, ahead)
  if units > 0 then
    redis.call('SET', key, string.format('%.0f:%.0f:%.0f:%.0f', tat, ticks, units, ahead), 'KEEPTTL')
  else
    write_state(key, tat, ticks, 0, ahead, math.max(math.ceil((tat - now) / 1000) + 1 + slack, 1))
  end
end

-- the rule in force (the caller's, or an override's) and how long a pause lasts, microseconds
local function in_force(key, given, now, emission, per_us, capacity)
  local value = given ~= '' and given or redis.call('GET', key)
  if not value then return emission, per_us, capacity, 0 end
  local e, t, c, pause = string.match(value, '^(%d+):(%d+):(%d+):(%d+)$')
  if not e then error('FLEETLIMIT not an override at key ' .. key) end
  if tonumber(e) > 0 then emission, per_us, capacity = tonumber(e), tonumber(t), tonumber(c) end
  return emission, per_us, capacity, math.max(pause - now, 0)
end

-- the state as far as an honest one can be (clamped in gcra.py)
local function clamped(tat, ticks, ahead_us, now, per_us, capacity)
  local most = capacity + ahead_us * per_us
  if not tat or (tat - now) * per_us + ticks <= most then return tat, ticks end
  return now + math.floor(most / per_us), most % per_us
end

-- ahead, lag, idle in ticks (Look in gcra.py)
local function look(tat, ticks, now, emission, per_us, capacity, cost, pause_us)
  local need = math.min(cost * emission, capacity) - capacity
  local raw = tat and (tat - now) * per_us + ticks or -math.huge
  local ahead = math.max(raw, 0)
  local lag = math.max(ahead + need, pause_us > 0 and pause_us * per_us or -math.huge)
  return ahead, lag, math.min(-(raw + need), pause_us > 0 and -lag or math.huge)
end
