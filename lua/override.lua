--@ state
-- Change the override of a limit: other rules, a pause, or a wider margin. The override is read, changed and written in
-- one step, so that of two changes at the same time none is lost.
-- KEYS  override
-- ARGV  1 now_us ('' = the server's clock)   2 rules ('' = none, '=' = as they are)
--       3 pause_us from now on (0 = none, -1 = as it is)   4 '1': the new pause may shorten a longer one
--       5 the margin that a host asks for, thousandths of the period (0 = none); a larger margin in force stays
--       6 '1': the host asks for this margin for a moment only
-- Reply: rules (a text), pause_until_us (0 = none), now_us, margin, margin_until_us (0 = none)
-- A value that is no override is replaced (but not a newer form of an override). A key without rules lasts as long as
-- its pause and its margin.
local key, now, slack = KEYS[1], clock(ARGV[1])
local value = redis.call('TYPE', key).ok == 'string' and redis.call('GET', key) or ''
if string.find(value, '^[2-9]:') then foreign(key, value, 'an override') end
local rules, until_us, margin, margin_until = string.match(value, OVERRIDE)
rules, until_us = rules or '', tonumber(until_us or 0)
margin, margin_until = tonumber(margin) or 0, tonumber(margin_until) or 0
if until_us <= now then until_us = 0 end
local left = margin_at(now, margin, margin_until)
if left == 0 then margin, margin_until = 0, 0 end
if tonumber(ARGV[5]) > left then
  local lasts = ARGV[6] == '1' and BRIEF_US or MARGIN_US
  margin, margin_until = ARGV[5] * math.max(math.floor(FADES_US / lasts), 1), now + lasts
end

if ARGV[2] ~= '=' then rules = ARGV[2] end
local pause = tonumber(ARGV[3])
if pause == 0 then
  until_us = 0
elseif pause > 0 then
  until_us = ARGV[4] == '1' and now + pause or math.max(until_us, now + pause)
end

value = FORM .. ':' .. rules .. ':' .. text(until_us)
if margin > 0 then value = value .. ':' .. text(margin) .. ':' .. text(margin_until) end
local lasts_us = math.max(until_us, margin_until) - now
if rules ~= '' then
  redis.call('SET', key, value)
elseif lasts_us > 0 then
  redis.call('SET', key, value, 'PX', text(math.ceil(lasts_us / 1000) + slack))
else
  redis.call('DEL', key)
end
return { rules, until_us, now, margin, margin_until }
