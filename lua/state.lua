-- Prelude of the other scripts: the clock, rules, and the stored state of a line.
--
-- Rule, a text: a letter for the algorithm and its numbers, parted by commas (`wire` in src/fleetlimit/algorithms), and
-- behind a ~ an automatic margin, in thousandths of the period.
-- All that is stored begins with the number of its form, which is 1.
-- Override, one string per limit: "1:<rules, parted by ;>:<pause_until_us>", and while hosts of the fleet make tasks
-- late ":<margin, thousandths of the period>:<until_us>".
-- State, one string per line:
--   "1<letter>:<units>:<full_at_us>:<numbers of the algorithm>"
--   "1-:<units>"  somebody waits, and nothing is remembered
--   an algorithm may have a form of its own, which begins with "1<letter>", too; that of the default algorithm may also
--   begin with "1:", which is what try.lua reads and writes
-- units: the sum of the costs waiting in the line (0: nobody waits, the line is not looked at);
-- full_at_us: when nothing is remembered any more (0: nothing is).
-- Numbers in capitals that are not defined here come from src/fleetlimit/store/shared.py.
-- Numbers are doubles and tostring() keeps 14 digits: times are written with %.0f.
--
-- Algorithm, a table that its own file returns:
--   letter       begins its rules and its states
--   size         how many numbers its rules have
--   grows        which of these numbers grows with an automatic margin (nil: none)
--   whole        how many thousandths of the period this number stands for under the least margin
--   below        which number is the period, below which the one that grows stays (nil: there is no such bound)
--   pattern      which texts are states of it
--   load, save   in place of `pattern`, for states in another form: load(s, value) takes units, full_at and n from what
--                is stored, and says whether it could; save(s) returns what is to be stored, or nil if it has stored it
--   holds_more   whether its states go on behind HEADER bytes, with what `load` need not see
--   clamp, look, wait, pace, spend, delay, give_back: see `Algorithm` in src/fleetlimit/algorithms/base.py

local SLACK_MS = 60000 -- an injected clock does not move with the server's expiry
local FORM = '1'       -- of all that is stored here
local OVERRIDE = '^1:([a-z,;~%d%-]*):(%d+):?(%d*):?(%d*)$'
local HEADER = 66      -- so many bytes of a state are read at first
local DEFAULT           -- the letter of the default algorithm
local MAKERS = {}       -- by letter: makes an algorithm. Both are set by the `*` in a script's first line
local ALGORITHMS = setmetatable({}, { __index = function(made, letter)
  local make = MAKERS[letter]
  if not make then return nil end
  local algorithm = make()
  made[letter] = algorithm
  return algorithm
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
local function rule_of(value)
  local algorithm, r = ALGORITHMS[string.sub(value, 1, 1)], numbers_of(string.sub(value, 3))
  if not algorithm or #r ~= algorithm.size or r[1] < 1 or (r[2] or 0) < 0 then
    error('FLEETLIMIT not a rule: ' .. value)
  end
  return algorithm, r
end


-- the rule with so large a margin in force (`widened` in src/fleetlimit/algorithms/base.py)
local function widened(rule, margin)
  local letter, own = string.match(rule, '^(%a),(.*)~10$')
  if not own then return rule end
  margin = math.min(margin, MOST_MARGIN)
  local algorithm, r = ALGORITHMS[letter] or {}, numbers_of(own)
  local number, more, whole, below = r[algorithm.grows], margin - LEAST_MARGIN, algorithm.whole, algorithm.below
  if number then
    number = number + math.floor(number / whole) * more + math.ceil(number % whole * more / whole)
    r[algorithm.grows] = below and math.min(number, r[below] - 1) or number
  end
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

-- a state in the form that most algorithms have; whether it is one
local function loaded(s, value, pattern)
  if not string.find(value, pattern) then return false end
  s.n = numbers_of(string.sub(value, 4))
  s.units, s.full_at = table.remove(s.n, 1), table.remove(s.n, 1)
  return true
end

-- s: key, units, full_at; and kind (a letter) and n (the algorithm's numbers) if anything is remembered
local function load(key)
  local s = { key = key, units = 0, full_at = 0 }
  local value = redis.call('GETRANGE', key, 0, HEADER - 1)
  if value == '' and redis.call('EXISTS', key) == 0 then return s end
  local kind = string.sub(value, 2, 2)
  local algorithm = string.sub(value, 1, 1) == FORM and ALGORITHMS[kind == ':' and DEFAULT or kind]
  if not algorithm then
    s.units = tonumber(string.match(value, '^1%-:(%d+)$')) or foreign(key, value, 'a state')
    return s
  end
  if #value == HEADER and not algorithm.holds_more then value = redis.call('GET', key) end -- it may be longer
  local known
  if algorithm.load then known = algorithm.load(s, value) else known = loaded(s, value, algorithm.pattern) end
  if not known then foreign(key, value, 'a state') end
  s.kind = algorithm.letter
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
  local algorithm, value = s.n and ALGORITHMS[s.kind], nil
  if not algorithm then value = FORM .. '-:' .. text(s.units)
  elseif algorithm.save then value = algorithm.save(s)
  else value = string.format('1%s:%.0f:%.0f:%s', s.kind, s.units, s.full_at, joined(s.n)) end
  if not value then
    if ttl_ms == 0 then redis.call('PERSIST', s.key)
    elseif ttl_ms then redis.call('PEXPIRE', s.key, text(ttl_ms)) end
  elseif ttl_ms == 0 then redis.call('SET', s.key, value)
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
