--@ state line
-- Claimed messages were published: forget them; their tickets get a deadline.
-- KEYS  state, line, due, room, claims
-- ARGV  1 now_us ('' = the server's clock)   2 grace_us   3 when they were claimed   then the task ids
-- Reply integer: how many. One that has been parked again since (another claim, or none) stays.
local now, slack = clock(ARGV[1])
local l, done = line_at(KEYS), 0
for i = 4, #ARGV do
  local id = ARGV[i]
  if redis.call('ZSCORE', l.claims, id) == ARGV[3] then
    done = done + redis.call('HDEL', l.room, id)
    if redis.call('ZSCORE', l.line, id) then redis.call('ZADD', l.due, text(now + ARGV[2]), id) end
  end
end
local ttl = math.ceil(ARGV[2] / 1000) + slack
keep(l.due, ttl)
keep(l.claims, 3600000)
settle_expiry(l, now, slack)
return done
