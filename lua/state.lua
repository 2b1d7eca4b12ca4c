-- Prelude of the other scripts: the clock, rules, and the stored state of a line.
--
-- Rule, a text: a letter for the algorithm and its numbers, parted by commas (`wire` in src/fleetlimit/algorithms), and
-- behind a ~ an automatic margin, in thousandths of the period.
-- All that is stored begins with the number of its form, which is 1.
-- Override, one string per limit: "1:<rules, parted by ;>:<pause_until_us>", and while hosts of the fleet make tasks
-- late ":<margin, thousandths of the period>:<until_us>".
-- State, one string per line:
--   "1:<tat_us>"                                                 gcra, when there is no more to say
--   "1<letter>:<units>:<full_at_us>:<numbers of the algorithm>"  g, f and c
--   '1l', 8 doubles (units, full_at_us, head, live, newest_us, shift_us, ahead_us, size), then the ring of
--   a log: 8 bytes for each unit
-- units: the sum of the costs waiting in the line (0: nobody waits, the line is not looked at);
-- full_at_us: when nothing is remembered any more (0: nothing is).
-- Numbers are doubles and tostring() keeps 14 digits: times are written with %.0f.

local SLACK_MS = 60000 -- an injected clock does not move with the server's expiry
local FORM = '1'       -- of all that is stored here
local LONGEST_SLEEP_US = 1000000 -- ahead of time nothing is booked by more
local OVERRIDE = '^1:([a-z,;~%d%-]*):(%d+):?(%d*):?(%d*)$'
local HEADER = 66      -- bytes before a log's ring
local MAKERS = {}       -- by letter: make the algorithm of gcra.lua, fixed_window.lua, ...
local ALGORITHMS = setmetatable({}, { __index = function(made, letter)
  if not MAKERS[letter] then return nil end
  MAKERS[letter]()
  return rawget(made, letter)
end })

-- now_us from the server's clock, or the injected one; and the slack for a TTL
local function clock(injected)
  if injected ~= '' then return tonumber(injected), SLACK_MS end
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2], 0
end

local function text(number) return string.format('%.0f', number) end

-- the first numbers of a list, parted by colons: one call, for it is made in every decision
local function joined(numbers)
  local count = math.min(#numbers, 6)
  return string.format(string.sub('%.0f:%.0f:%.0f:%.0f:%.0f:%.0f', 1, 5 * count - 1), unpack(numbers, 1, count))
end

-- the numbers that a text begins with, parted by commas or colons
local function numbers_of(value)
  local found, n = {}, 0
  for number in string.gmatch(string.match(value, '^[%d,:%-]*'), '[^,:]+') do
    n = n + 1
    found[n] = tonumber(number)
  end
  return found
end

-- what another program wrote at a key of ours, or a later version of this one
local function foreign(key, value, what)
  local form = string.match(value, '^([2-9])%a?:') or string.match(value, '^([2-9])%a')
  if form then error('FLEETLIMIT form ' .. form .. ' of ' .. what .. ', which is newer than this version, at key ' .. key) end
  error('FLEETLIMIT not ' .. what .. ' at key ' .. key)
end

-- the algorithm of a rule, and its numbers
local SIZES = { g = 3, f = 7, c = 5, l = 2 }
local function rule_of(value)
  local letter, r = string.sub(value, 1, 1), numbers_of(string.sub(value, 3))
  local size = SIZES[letter]
  if not size or #r ~= size or r[1] < 1 or r[2] < 0 then error('FLEETLIMIT not a rule: ' .. value) end
  return ALGORITHMS[letter], r
end

local LEAST_MARGIN, MOST_MARGIN = 10, 100
local MARGIN_US, FADES_US = 60000000, 30000000 -- a margin lasts so long, and goes back in the last part of it
local BRIEF_US = 2000000 -- one that is asked for briefly lasts so long, and is kept as if it had faded until then

-- the rule with so large a margin in force (`widened` in src/fleetlimit/algorithms/base.py)
local function widened(rule, margin)
  local letter, own = string.match(rule, '^(%a),(.*)~10$')
  if not own then return rule end
  margin = math.min(margin, MOST_MARGIN)
  -- which number grows with the margin, how many thousandths of the period that is under the least one, and which
  -- number is the period, below which it stays (made here, and not in every decision)
  local grows = ({ g = { 1, 1010 }, l = { 2, 1010 }, f = { 2, 10, 3 }, c = { 3, 10, 2 } })[letter]
  local r = numbers_of(own)
  local number, more, whole = r[grows[1]], margin - LEAST_MARGIN, grows[2]
  number = number + math.floor(number / whole) * more + math.ceil(number % whole * more / whole)
  r[grows[1]] = grows[3] and math.min(number, r[grows[3]] - 1) or number
  for i = 1, #r do r[i] = text(r[i]) end
  return letter .. ',' .. table.concat(r, ',') .. '~' .. text(margin)
end

-- what is left of a margin (`Override.margin_at`)
local function margin_at(now, margin, until_us)
  local left = (tonumber(until_us) or 0) - now
  if left <= 0 or left > MARGIN_US then return 0 end -- left by a clock that stepped back
  return math.floor(margin * math.min(left, FADES_US) / FADES_US)
end

-- the rule in force (the caller's, or an override's), how long a pause lasts, microseconds, and the margin that the
-- fleet asks for
local function in_force(key, given, now, rule)
  local value = given ~= '' and given or redis.call('GET', key)
  if not value then return rule, 0, 0 end
  local other, pause, margin, margin_until = string.match(value, OVERRIDE)
  if not other then foreign(key, value, 'an override') end
  margin = margin_at(now, tonumber(margin) or 0, margin_until)
  if string.find(other, ';', 1, true) then -- of several the one that counts as the caller does
    other = string.match(';' .. other, ';(' .. string.sub(rule, 1, 1) .. '[^;]*)') or ''
  end
  rule = other ~= '' and other or rule
  return margin > LEAST_MARGIN and widened(rule, margin) or rule, math.max(pause - now, 0), margin
end

-- s: key, units, full_at; and kind (a letter) and n (the algorithm's numbers) if anything is remembered
local function load(key)
  local s = { key = key, units = 0, full_at = 0 }
  local value = redis.call('GETRANGE', key, 0, HEADER - 1)
  if value == '' and redis.call('EXISTS', key) == 0 then return s end
  local kind = string.sub(value, 2, 2)
  if #value == HEADER and kind ~= 'l' then value = redis.call('GET', key) end -- it may be longer
  if string.sub(value, 1, 1) ~= FORM then foreign(key, value, 'a state') end
  if kind == 'g' then
    local units, tat, ticks, ahead = string.match(value, '^1g:(%d+):(%d+):(%d+):(%d+)$')
    if not units then foreign(key, value, 'a state') end
    s.units, s.full_at = tonumber(units), tonumber(tat)
    s.n = { s.full_at, tonumber(ticks), tonumber(ahead) }
  elseif string.find(value, '^1:%d+$') then
    kind, s.n = 'g', { tonumber(string.sub(value, 3)), 0, 0 }
    s.full_at = s.n[1]
  elseif kind == 'l' and #value == HEADER then
    s.n = { struct.unpack('>dddddddd', value, 3) }
    s.units, s.full_at = table.remove(s.n, 1), table.remove(s.n, 1)
    local head, live, size = s.n[1], s.n[2], s.n[6]
    if not (s.units >= 0 and head >= 0 and head < size and live >= 1 and live <= size and size <= 1000000) then
      foreign(key, value, 'a state')
    end
  elseif string.find(value, '^1f:%d+:%d+:%-?%d+:%d+$') or string.find(value, '^1c:%d+:%d+:%-?%d+:%d+:%d+$') then
    s.n = numbers_of(string.sub(value, 4))
    s.units, s.full_at = table.remove(s.n, 1), table.remove(s.n, 1)
  else
    foreign(key, value, 'a state')
  end
  s.kind = kind
  if s.full_at == 0 then s.n = nil end
  return s
end

-- what was counted in another way says nothing; whether there was something
local function known_as(s, rule)
  local kind, other = string.sub(rule, 1, 1), s.n ~= nil
  if s.kind == kind then return false end
  s.kind, s.n, s.full_at = kind, nil, 0
  return other
end

-- ttl_ms 0: for ever (somebody is parked); nil: as before
local function save(s, ttl_ms)
  if s.n and s.kind == 'l' then
    redis.call('SETRANGE', s.key, 0, '1l' .. struct.pack('>dddddddd', s.units, s.full_at, unpack(s.n, 1, 6)))
    if ttl_ms == 0 then redis.call('PERSIST', s.key)
    elseif ttl_ms then redis.call('PEXPIRE', s.key, text(ttl_ms)) end
    return
  end
  local value = '1g:' .. text(s.units) .. ':0:0:0'
  if s.n and s.kind == 'g' then
    value = '1:' .. text(s.n[1])
    if s.units + s.n[2] + s.n[3] > 0 then
      value = string.format('1g:%.0f:%.0f:%.0f:%.0f', s.units, s.n[1], s.n[2], s.n[3])
    end
  elseif s.n then
    value = string.format('1%s:%.0f:%.0f:%s', s.kind, s.units, s.full_at, joined(s.n))
  end
  if ttl_ms == 0 then redis.call('SET', s.key, value)
  elseif ttl_ms then redis.call('SET', s.key, value, 'PX', text(ttl_ms))
  else redis.call('SET', s.key, value, 'KEEPTTL') end
end

-- how long a state with nobody in its line says something, milliseconds
local function life(s, now, slack)
  return math.max(math.ceil(math.max(s.full_at - now, 0) / 1000) + slack, 1)
end

-- another state for those who wait or not: while somebody does, its expiry is the line's
local function moved(s, now, slack)
  if s.units > 0 then save(s)
  elseif s.n then save(s, life(s, now, slack) + 1)
  else redis.call('DEL', s.key) end
end
