/**
 * The scripts that decide, in the server, what `core/decide.ts` says. A script runs alone, so what
 * it reads is true until it has written.
 *
 * Rules that hold for all of them:
 * - Every key comes in KEYS: first `due` and `ids` of each bucket, then a key for each request,
 *   then, where replicas are waited for, one key to mark. They touch no other.
 * - ARGV is the time (empty: the server's own), the number of buckets, the requests packed into one
 *   string, and '1' where the last key is to be marked. One long argument costs the client far
 *   less than hundreds of short ones.
 * - They run in one round trip for as many requests as the store lets into a batch, in the order
 *   of the batch: what the first wrote is what the second finds.
 * - A repeated script recognises itself by the tokens: clients send a script again when its
 *   connection was cut.
 * - What the server stores (the layout of a record, codes, scores) never changes its meaning. A new
 *   layout gets a new version byte.
 */

/** One word of a union, by its code. Code 0 is nothing. */
export const STATE_CODES = [
  undefined,
  'pending',
  'in_progress',
  'completed',
  'failed_retryable',
  'unknown',
  'expired',
] as const
export const LAPSE_CODES = [undefined, 'unknown', 'rerun', 'resume'] as const
export const EXPIRY_CODES = [undefined, 'new', 'refuse'] as const
export const PROOF_CODES = [undefined, 'proven', 'declared'] as const
export const MODE_CODES = [undefined, 'hold', 'accept', 'take'] as const
export const SETTLEMENT_CODES = [undefined, 'complete', 'release', 'doubt'] as const
export const CLAIM_CODES = [
  undefined,
  'claimed',
  'completed',
  'in_progress',
  'pending',
  'unknown',
  'mismatch',
  'expired',
] as const
export const FROM_CODES = [undefined, 'new', 'retry', 'lapsed', 'expired', 'accepted'] as const

/** Scores of `due` are a class and a time in one number: both fit exactly into a double. */
export const SCORE_SPAN = 2 ** 48

/** The class of the second entry of a state whose listing goes by another time than its moves. */
export const LISTED_CLASS = 8

/** The version byte of the layout below. */
export const LAYOUT = 1

/**
 * Records vanish by themselves this long after they have expired: for what nobody reaps. Long
 * enough for the reaper to come first, as it keeps the indexes tidy, too.
 */
const LINGER_MS = 24 * 60 * 60 * 1000

/**
 * A record is one string: codes, counters, times, texts, then what its first claim brought
 * (`body`: record id, fingerprint, tenant, operation, key), then its result. A time of -1 is none.
 *
 * `due` holds each record id under the time of its next move: the end of its lease, or its expiry.
 * `unknown` and `expired` wait for nobody, so they stand under their last run. States that are
 * listed by last run but move at another time have a second entry, `@` and the id.
 */
export const PRELUDE = `
local PENDING, HELD, DONE, FREE, UNKNOWN, EXPIRED = 1, 2, 3, 4, 5, 6
local LAYOUT = '<BBBBBBI4I4ddddddHc0Hc0Hc0Hc0'
local now, real = tonumber(ARGV[1]), false
if not now then
  local time = redis.call('TIME')
  now, real = time[1] * 1000 + math.floor(time[2] / 1000), true
end
local buckets = 2 * tonumber(ARGV[2])
local count = #KEYS - buckets
if ARGV[4] == '1' then
  count = count - 1
  redis.call('SET', KEYS[#KEYS], '', 'PX', 60000)
end

local function parse(data)
  if not data then return nil end
  local r, version, at = {}
  version, r.state, r.onLapse, r.afterExpiry, r.proof, r.hasResult, r.attempt, r.lapses,
    r.leaseUntil, r.reconcileAt, r.createdAt, r.lastRunAt, r.completedAt, r.expiresAt, r.token,
    r.errorCode, r.recoveryPoint, r.body, at = struct.unpack(LAYOUT, data)
  if version ~= ${LAYOUT} then error('a record of layout ' .. version) end
  r.id, r.fingerprint = struct.unpack('<Hc0Hc0', r.body)
  r.data, r.at = data, at
  return r
end

local function resultOf(r)
  return string.sub(r.data, r.at)
end

local function index(due, r)
  local state, at = r.state, r.lastRunAt
  if state == HELD then at = r.leaseUntil elseif state <= FREE then at = r.expiresAt end
  at = state * ${SCORE_SPAN} + math.max(0, math.min(math.floor(at), ${SCORE_SPAN - 1}))
  if state == DONE or state > FREE then
    redis.call('ZADD', due, at, r.id)
    redis.call('ZREM', due, '@' .. r.id)
  else
    redis.call('ZADD', due, at, r.id,
      (${LISTED_CLASS} + state) * ${SCORE_SPAN} + math.floor(r.lastRunAt), '@' .. r.id)
  end
end

local function write(key, due, r, result)
  r.hasResult = result and 1 or 0
  local data = struct.pack(LAYOUT, ${LAYOUT}, r.state, r.onLapse, r.afterExpiry, r.proof,
    r.hasResult, r.attempt, r.lapses, r.leaseUntil, r.reconcileAt, r.createdAt, r.lastRunAt,
    r.completedAt, r.expiresAt, #r.token, r.token, #r.errorCode, r.errorCode,
    #r.recoveryPoint, r.recoveryPoint, #r.body, r.body)
  if result then data = data .. result end
  -- Only what a new claim may replace, and never by a clock that is not the server's.
  if real and (r.state == DONE or r.state == FREE) and r.afterExpiry == 1 then
    redis.call('SET', key, data, 'PXAT', math.floor(r.expiresAt) + ${LINGER_MS})
  else
    redis.call('SET', key, data)
  end
  index(due, r)
  return data
end

local function forget(due, ids, id)
  redis.call('ZREM', due, id, '@' .. id)
  redis.call('HDEL', ids, id)
end

local function isExpired(r)
  if r.state == EXPIRED then return true end
  return (r.state == DONE or r.state == FREE) and r.expiresAt <= now
end

local function lapse(r)
  r.errorCode = 'lease_lapsed'
  if r.onLapse == 1 then
    r.state, r.reconcileAt = UNKNOWN, now
  else
    r.state, r.lapses, r.proof = FREE, r.lapses + 1, 1
    r.expiresAt = math.max(r.expiresAt, now + r.expiresAt - r.lastRunAt)
  end
end

local function complete(r, retentionMs)
  r.state, r.proof, r.errorCode, r.reconcileAt, r.completedAt = DONE, 0, '', -1, now
  r.expiresAt = math.max(r.expiresAt, now + retentionMs)
end
`

/**
 * Takes keys. The checks are in the order of `decideClaim`. An answer is a code, a detail, the
 * attempt, a time span, the expiry, the record id (empty: the request's own), a text, and the
 * result to replay.
 */
export const CLAIM = `${PRELUDE}
local CLAIMED, COMPLETED, IN_PROGRESS, WAITING, DOUBTFUL, MISMATCH, GONE = 1, 2, 3, 4, 5, 6, 7
local ACCEPT, TAKE = 2, 3
local packed, at = ARGV[3], 1
local q = {}

local function answer(code, detail, attempt, ms, expiresAt, id, text)
  return struct.pack('<BBI4ddHc0Hc0', code, detail, attempt, ms, expiresAt, #id, id, #text, text)
end

-- Decided when the attempt starts, so that a sweep needs to know nothing of the route.
local function policy(lapses)
  return lapses + 1 >= q.maxAttempts and 1 or q.onLapse
end

local function claimFree(key, due, ids, from)
  if q.mode == TAKE then return answer(GONE, 0, 0, 0, 0, '', '') end
  local accepting = q.mode == ACCEPT
  local r = { state = accepting and PENDING or HELD, onLapse = policy(0),
    afterExpiry = q.afterExpiry, proof = 0, attempt = accepting and 0 or 1, lapses = 0,
    leaseUntil = accepting and now or now + q.leaseMs, reconcileAt = -1, createdAt = now,
    lastRunAt = now, completedAt = -1, expiresAt = now + q.retentionMs, token = q.token,
    errorCode = '', recoveryPoint = '', body = q.body, id = q.id }
  redis.call('HSET', ids, q.id, string.sub(key, -32))
  write(key, due, r)
  if accepting then return answer(WAITING, 1, 0, 0, r.expiresAt, '', '') end
  return answer(CLAIMED, from, 1, 0, r.expiresAt, '', '')
end

local function claimAgain(key, due, r, lapses, from)
  local accepting = q.mode == ACCEPT
  r.state, r.lapses, r.token = accepting and PENDING or HELD, lapses, q.token
  if not accepting then r.attempt = r.attempt + 1 end
  r.leaseUntil = accepting and now or now + q.leaseMs
  r.onLapse, r.afterExpiry = policy(lapses), q.afterExpiry
  r.proof, r.errorCode, r.reconcileAt, r.lastRunAt = 0, '', -1, now
  r.expiresAt = math.max(r.expiresAt, now + q.retentionMs)
  write(key, due, r)
  if accepting then return answer(WAITING, 1, 0, 0, r.expiresAt, r.id, '') end
  return answer(CLAIMED, from, r.attempt, 0, r.expiresAt, r.id, r.recoveryPoint)
end

local function inDoubt(r, lapsed)
  return answer(DOUBTFUL, lapsed, r.attempt, math.max(0, r.reconcileAt - now), 0, r.id, '')
end

local function claimExisting(key, due, r)
  if r.state == DONE then
    return answer(COMPLETED, 0, 0, 0, r.expiresAt, r.id, '') .. resultOf(r)
  elseif r.state == HELD then
    if r.leaseUntil > now then
      return answer(IN_PROGRESS, 0, 0, r.leaseUntil - now, r.expiresAt, r.id, '')
    elseif r.onLapse == 1 then
      lapse(r)
      write(key, due, r)
      return inDoubt(r, 1)
    end
    return claimAgain(key, due, r, r.lapses + 1, 3)
  elseif r.state == FREE then
    -- The echo of a claim that was released unanswered takes nothing.
    if r.token == q.token then return answer(IN_PROGRESS, 0, 0, 0, r.expiresAt, r.id, '') end
    return claimAgain(key, due, r, r.lapses, 2)
  elseif r.state == UNKNOWN then
    return inDoubt(r, 0)
  elseif q.mode ~= TAKE then
    return answer(WAITING, r.token == q.token and 1 or 0, 0, 0, r.expiresAt, r.id, '')
  elseif r.expiresAt <= now then
    return answer(GONE, 0, 0, 0, 0, r.id, '')
  end
  return claimAgain(key, due, r, r.lapses, 5)
end

local function claim(key, due, ids)
  local r = parse(redis.call('GET', key))
  if not r then return claimFree(key, due, ids, 1) end
  if isExpired(r) then
    if q.afterExpiry == 2 then return answer(GONE, 0, 0, 0, 0, r.id, '') end
    if q.mode ~= TAKE then forget(due, ids, r.id) end
    return claimFree(key, due, ids, 4)
  end
  if r.state == HELD and r.token == q.token then
    return answer(CLAIMED, r.attempt == 1 and 1 or 2, r.attempt, 0, r.expiresAt, r.id,
      r.recoveryPoint)
  end
  if r.fingerprint ~= q.fingerprint then
    return answer(MISMATCH, 0, 0, 0, 0, r.id, r.fingerprint)
  end
  return claimExisting(key, due, r)
end

local answers = {}
for n = 1, count do
  local bucket
  bucket, q.mode, q.onLapse, q.afterExpiry, q.leaseMs, q.retentionMs, q.maxAttempts, q.token,
    q.body, at = struct.unpack('<BBBBdddHc0Hc0', packed, at)
  q.id, q.fingerprint = struct.unpack('<Hc0Hc0', q.body)
  answers[n] = claim(KEYS[buckets + n], KEYS[2 * bucket - 1], KEYS[2 * bucket])
end
return answers
`

/**
 * Ends leases, as `decideSettle` says. The fence is the token and the attempt. An answer is
 * whether it is settled, whether the token is the record's, the state (0: absent), the expiry.
 */
export const SETTLE = `${PRELUDE}
local COMPLETE, RELEASE, DOUBT = 1, 2, 3
local STATES = { DONE, FREE, UNKNOWN }
local packed, at = ARGV[3], 1

local function settle(key, due, kind, proof, attempt, ms, token, errorCode, result)
  local r = parse(redis.call('GET', key))
  if not r then return struct.pack('<BBBd', 0, 0, 0, 0) end
  local anyAttempt = kind == RELEASE and attempt == 0
  if r.token ~= token or not (anyAttempt or r.attempt == attempt) then
    return struct.pack('<BBBd', 0, 0, r.state, 0)
  end
  if r.state == STATES[kind] then return struct.pack('<BBBd', 1, 1, r.state, r.expiresAt) end
  local mayMove = r.state == HELD
    or (kind == COMPLETE and (r.state == UNKNOWN or r.state == FREE))
    or (kind == RELEASE and r.state == UNKNOWN and proof == 1)
  if not mayMove then return struct.pack('<BBBd', 0, 1, r.state, 0) end

  if kind == COMPLETE then
    complete(r, ms)
    write(key, due, r, result)
  else
    r.errorCode = errorCode
    if kind == RELEASE then
      r.state, r.proof, r.reconcileAt = FREE, proof, -1
      r.expiresAt = math.max(r.expiresAt, now + ms)
    else
      r.state, r.reconcileAt = UNKNOWN, now + ms
    end
    write(key, due, r)
  end
  return struct.pack('<BBBd', 1, 1, r.state, r.expiresAt)
end

local answers = {}
for n = 1, count do
  local bucket, kind, proof, attempt, ms, token, errorCode, result
  bucket, kind, proof, attempt, ms, token, errorCode, result, at =
    struct.unpack('<BBBI4dHc0Hc0I4c0', packed, at)
  answers[n] = settle(KEYS[buckets + n], KEYS[2 * bucket - 1], kind, proof, attempt, ms, token,
    errorCode, result)
end
return answers
`

/** Prolongs leases from now. An answer is one byte for each. */
export const RENEW = `${PRELUDE}
local packed, at = ARGV[3], 1
local answers = {}
for n = 1, count do
  local bucket, attempt, leaseMs, token
  bucket, attempt, leaseMs, token, at = struct.unpack('<BI4dHc0', packed, at)
  local key = KEYS[buckets + n]
  local r = parse(redis.call('GET', key))
  local holds = r and r.state == HELD and r.token == token and r.attempt == attempt
  if holds then
    r.leaseUntil = now + leaseMs
    write(key, KEYS[2 * bucket - 1], r)
  end
  answers[n] = holds and '1' or '0'
end
return answers
`
