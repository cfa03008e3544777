/**
 * The scripts that implement the decisions of `core/record/decide.ts` in the server. Redis runs one
 * script at a time, so the records that a script reads do not change until it has written them.
 *
 * Rules for all scripts:
 * - Every key is in KEYS: `due` and `ids` of each bucket, then a key for each request, then the key
 *   of the mark if the call waits for replicas. A script uses no other key.
 * - ARGV contains the time (empty: the clock of the server), the number of buckets, the requests
 *   packed into one string, and '1' if the last key is to be marked. One long argument costs the
 *   client far less than hundreds of short ones.
 * - A script handles all its requests in one round trip, in their order: a request finds what an
 *   earlier one of the same script wrote.
 * - A repeated script recognises its first run by the tokens. Clients send a script again when its
 *   connection was cut.
 * - The meaning of stored data (the layout of a record, codes, scores) never changes. A new layout
 *   gets a new version byte.
 */

import { LEASE_AHEAD_MS } from '../../../core/record/shorten-lease.ts'

/** The words of each union by their code. Code 0 means that there is no value. */
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

/** A score in `due` is a class times this number plus a time. A double represents it exactly. */
export const SCORE_SPAN = 2 ** 48

/** Added to the class of the second entry of a record, which has the time of its last run. */
export const LISTED_CLASS = 8

/** Size of a record before its texts. The last two bytes contain the length of the texts. */
export const HEAD_BYTES = 64

/** The version byte of the layout below. */
export const LAYOUT = 1

/**
 * Redis removes records this long after their expiry, in case no reaper runs. Usually the reaper
 * comes first, and also cleans up the indexes.
 */
const LINGER_MS = 24 * 60 * 60 * 1000

/**
 * Functions that all scripts of batches share, and the layout of a record.
 *
 * A record is one string: codes, counters and times (the head), then its texts, each after its
 * length (record id, token, error code, recovery point, fingerprint, tenant, operation, key), then
 * its result. A time of -1 means none. The head begins with the fields that a completion changes,
 * and the texts are in the format of a claim, so that the common moves concatenate strings instead
 * of unpacking them. The record id is a UUID, so the token has a fixed position.
 *
 * While a record is held, the field of `reconcileAt` contains the length of its lease, or -1 if a
 * node of an older version gave the lease. Such a node writes -1 there with every claim, so the
 * length never belongs to another lease.
 *
 * `due` contains each record id with the time of its next move: the end of its lease, or its
 * expiry. `unknown` and `expired` records have no such time, so they have that of their last run.
 * `pending` and `failed_retryable` records are listed by last run but move at another time, so they
 * have a second entry: `@` and the id.
 */
export const PRELUDE = `
local PENDING, HELD, DONE, FREE, UNKNOWN, EXPIRED = 1, 2, 3, 4, 5, 6
local HEAD, HEAD_BYTES, TEXTS = '<BBBBdddBBI4I4dddH', ${HEAD_BYTES}, '<Hc0Hc0Hc0Hc0Hc0'
-- Positions of the fields in the head. Field 1 is the layout, field 13 the time of creation.
local STATE, PROOF, HAS_RESULT, RECONCILE_AT, COMPLETED_AT, EXPIRES_AT = 2, 3, 4, 5, 6, 7
local ON_LAPSE, AFTER_EXPIRY, ATTEMPT, LAPSES, LEASE_UNTIL, LAST_RUN_AT = 8, 9, 10, 11, 12, 14
local TEXT_BYTES = 15
local LEASE_MS = RECONCILE_AT

local now, real = tonumber(ARGV[1]), false
if not now then
  local time = redis.call('TIME')
  now, real = time[1] * 1000 + math.floor(time[2] / 1000), true
end
local buckets = 2 * tonumber(ARGV[2])
local count = #KEYS - buckets
if ARGV[4] == '1' then count = count - 1 end

-- One command reads all records. flush() writes all records without a TTL with one command.
local found = redis.call('MGET', unpack(KEYS, buckets + 1, buckets + count))
local written, unsent = {}, {}
for n = 1, count do
  local layout = found[n] and string.byte(found[n]) or ${LAYOUT}
  -- Checked before the first write, so that the other requests can be tried without this one.
  if layout ~= ${LAYOUT} then return redis.error_reply('LAYOUT ' .. layout .. ' is not known') end
end
if ARGV[4] == '1' then redis.call('SET', KEYS[#KEYS], '', 'PX', 60000) end

local function dataOf(n)
  return written[KEYS[buckets + n]] or found[n]
end

local function read(n)
  local data = dataOf(n)
  if not data then return nil end
  local r = { struct.unpack(HEAD, data) }
  r.data = data
  r.id, r.token, r.errorCode, r.recoveryPoint, r.fingerprint =
    struct.unpack(TEXTS, data, HEAD_BYTES + 1)
  return r
end

local function resultOf(r)
  return string.sub(r.data, HEAD_BYTES + r[TEXT_BYTES] + 1)
end

-- Replaces the token and the error code among the texts.
local function setTexts(r, token, errorCode)
  if token == r.token and errorCode == r.errorCode then return end
  local rest = HEAD_BYTES + 7 + #r.id + #r.token + #r.errorCode
  r.texts = struct.pack('<Hc0Hc0Hc0', #r.id, r.id, #token, token, #errorCode, errorCode)
    .. string.sub(r.data, rest, HEAD_BYTES + r[TEXT_BYTES])
  r[TEXT_BYTES] = #r.texts
end

local function scoreOf(class, at)
  local ms = math.max(0, math.min(math.floor(at), ${SCORE_SPAN - 1}))
  return string.format('%.0f', class * ${SCORE_SPAN} + ms)
end

-- \`before\`: the state before the move.
local function index(due, r, before)
  local state, at = r[STATE], r[LAST_RUN_AT]
  if state == HELD then at = r[LEASE_UNTIL] elseif state <= FREE then at = r[EXPIRES_AT] end
  if state == PENDING or state == FREE then
    local listed = scoreOf(${LISTED_CLASS} + state, r[LAST_RUN_AT])
    redis.call('ZADD', due, scoreOf(state, at), r.id, listed, '@' .. r.id)
  else
    redis.call('ZADD', due, scoreOf(state, at), r.id)
    if before == PENDING or before == FREE then redis.call('ZREM', due, '@' .. r.id) end
  end
end

local function flush()
  if #unsent > 0 then redis.call('MSET', unpack(unsent)) end
  unsent = {}
end

-- Only a record that a new claim may replace gets a TTL, and never by a test's clock.
local function put(n, data, vanishAt)
  local key = KEYS[buckets + n]
  if vanishAt and real then
    -- The unsent write of an earlier request would otherwise overwrite this one later.
    if written[key] then flush() end
    redis.call('SET', key, data, 'PXAT', vanishAt)
  else
    unsent[#unsent + 1] = key
    unsent[#unsent + 1] = data
  end
  written[key] = data
end

local function vanishAt(expiresAt)
  return string.format('%.0f', math.floor(expiresAt) + ${LINGER_MS})
end

local function write(n, due, r, before, result)
  r[HAS_RESULT] = result and 1 or 0
  local texts = r.texts or string.sub(r.data, HEAD_BYTES + 1, HEAD_BYTES + r[TEXT_BYTES])
  local data = struct.pack(HEAD, unpack(r, 1, TEXT_BYTES)) .. texts .. (result or '')
  local vanishes = (r[STATE] == DONE or r[STATE] == FREE) and r[AFTER_EXPIRY] == 1
  put(n, data, vanishes and vanishAt(r[EXPIRES_AT]))
  index(due, r, before)
  return data
end

local function forget(due, ids, id)
  redis.call('ZREM', due, id, '@' .. id)
  redis.call('HDEL', ids, id)
end

local function isExpired(r)
  if r[STATE] == EXPIRED then return true end
  return (r[STATE] == DONE or r[STATE] == FREE) and r[EXPIRES_AT] <= now
end

local function lapse(r)
  setTexts(r, r.token, 'lease_lapsed')
  if r[ON_LAPSE] == 1 then
    r[STATE], r[RECONCILE_AT] = UNKNOWN, now
  else
    r[STATE], r[LAPSES], r[PROOF], r[RECONCILE_AT] = FREE, r[LAPSES] + 1, 1, -1
    r[EXPIRES_AT] = math.max(r[EXPIRES_AT], now + r[EXPIRES_AT] - r[LAST_RUN_AT])
  end
end

-- Shortens a lease that was given before the clock was set back, as \`decideShorten\` does.
local function shorten(r)
  local leaseMs = r[LEASE_MS]
  if r[STATE] ~= HELD or leaseMs < 0 then return false end
  if r[LEASE_UNTIL] <= now + leaseMs + ${LEASE_AHEAD_MS} then return false end
  r[LEASE_UNTIL] = now + leaseMs
  return true
end

local function complete(r, token, retentionMs)
  setTexts(r, token, '')
  r[STATE], r[PROOF], r[RECONCILE_AT], r[COMPLETED_AT] = DONE, 0, -1, now
  r[EXPIRES_AT] = math.max(r[EXPIRES_AT], now + retentionMs)
end
`

/**
 * Claims keys. Of claims that race for a key, the first script wins, and the others read its
 * record. The checks have the order of `decideClaim`. An answer is a code, a detail, the attempt, a
 * time span, the expiry, the record id (empty: that of the request), a text, and the result to
 * replay. The time follows the answers. ARGV[5] may be a deadline: a later script claims nothing.
 */
export const CLAIM = `${PRELUDE}
local deadline = tonumber(ARGV[5])
if deadline and now > deadline then
  return redis.error_reply('LATE ' .. string.format('%.0f', now))
end

local CLAIMED, COMPLETED, IN_PROGRESS, WAITING, DOUBTFUL, MISMATCH, GONE = 1, 2, 3, 4, 5, 6, 7
local ACCEPT, TAKE = 2, 3
local packed, at = ARGV[3], 1
local policy, texts, mode, onLapse, afterExpiry, leaseMs, retentionMs, maxLapses, token, _

local function answer(code, detail, attempt, ms, expiresAt, id, text)
  return struct.pack('<BBI4ddHc0Hc0', code, detail, attempt, ms, expiresAt, #id, id, #text, text)
end

-- Decided when the attempt starts, so that a sweep does not need the options of the route.
local function lapsePolicy(lapses)
  return lapses + 1 >= maxLapses and 1 or onLapse
end

local function readPolicy()
  mode, onLapse, afterExpiry, leaseMs, retentionMs, maxLapses = struct.unpack('<BBBddd', policy)
end

-- New records with the same policy have the same head, because the time is the same.
local heads = {}
local function headOf()
  local head = heads[policy]
  if head then return head end
  readPolicy()
  local accepting, expiresAt = mode == ACCEPT, now + retentionMs
  local state, leaseUntil, length = HELD, now + leaseMs, leaseMs
  if accepting then state, leaseUntil, length = PENDING, now, -1 end
  head = { mode = mode, expiresAt = expiresAt,
    bytes = struct.pack(string.sub(HEAD, 1, -2), ${LAYOUT}, state, 0, 0, length, -1, expiresAt,
      lapsePolicy(0), afterExpiry, accepting and 0 or 1, 0, leaseUntil, now, now),
    score = scoreOf(state, accepting and expiresAt or leaseUntil),
    listed = accepting and scoreOf(${LISTED_CLASS} + state, now),
    new = accepting and answer(WAITING, 1, 0, 0, expiresAt, '', '')
      or answer(CLAIMED, 1, 1, 0, expiresAt, '', '') }
  heads[policy] = head
  return head
end

local function claimFree(n, due, ids, isNew)
  local head = headOf()
  if head.mode == TAKE then return answer(GONE, 0, 0, 0, 0, '', '') end
  -- The record id follows the length of all texts and its own length.
  local id = string.sub(texts, 5, 40)
  put(n, head.bytes .. texts)
  redis.call('HSET', ids, id, string.sub(KEYS[buckets + n], -32))
  if head.listed then
    redis.call('ZADD', due, head.score, id, head.listed, '@' .. id)
  else
    redis.call('ZADD', due, head.score, id)
  end
  if isNew or head.mode == ACCEPT then return head.new end
  return answer(CLAIMED, 4, 1, 0, head.expiresAt, '', '')
end

local function claimAgain(n, due, r, lapses, from)
  local accepting, before = mode == ACCEPT, r[STATE]
  r[STATE], r[LAPSES] = accepting and PENDING or HELD, lapses
  if not accepting then r[ATTEMPT] = r[ATTEMPT] + 1 end
  r[LEASE_UNTIL] = accepting and now or now + leaseMs
  r[ON_LAPSE], r[AFTER_EXPIRY] = lapsePolicy(lapses), afterExpiry
  r[PROOF], r[LEASE_MS], r[LAST_RUN_AT] = 0, accepting and -1 or leaseMs, now
  r[EXPIRES_AT] = math.max(r[EXPIRES_AT], now + retentionMs)
  setTexts(r, token, '')
  write(n, due, r, before)
  if accepting then return answer(WAITING, 1, 0, 0, r[EXPIRES_AT], r.id, '') end
  return answer(CLAIMED, from, r[ATTEMPT], 0, r[EXPIRES_AT], r.id, r.recoveryPoint)
end

local function inDoubt(r, lapsed)
  return answer(DOUBTFUL, lapsed, r[ATTEMPT], math.max(0, r[RECONCILE_AT] - now), 0, r.id, '')
end

local function claimExisting(n, due, r)
  local state, expiresAt = r[STATE], r[EXPIRES_AT]
  if state == DONE then
    return answer(COMPLETED, 0, 0, 0, expiresAt, r.id, '') .. resultOf(r)
  elseif state == HELD then
    if r[LEASE_UNTIL] > now then
      if shorten(r) then write(n, due, r) end
      return answer(IN_PROGRESS, 0, 0, r[LEASE_UNTIL] - now, expiresAt, r.id, '')
    elseif r[ON_LAPSE] == 1 then
      lapse(r)
      write(n, due, r)
      return inDoubt(r, 1)
    end
    return claimAgain(n, due, r, r[LAPSES] + 1, 3)
  elseif state == FREE then
    -- A late copy of a claim that was released without an answer claims nothing.
    if r.token == token then return answer(IN_PROGRESS, 0, 0, 0, expiresAt, r.id, '') end
    return claimAgain(n, due, r, r[LAPSES], 2)
  elseif state == UNKNOWN then
    return inDoubt(r, 0)
  elseif mode ~= TAKE then
    return answer(WAITING, r.token == token and 1 or 0, 0, 0, expiresAt, r.id, '')
  elseif expiresAt <= now then
    return answer(GONE, 0, 0, 0, 0, r.id, '')
  end
  return claimAgain(n, due, r, r[LAPSES], 5)
end

local function claim(n, due, ids)
  local r = read(n)
  if not r then return claimFree(n, due, ids, true) end
  readPolicy()
  if isExpired(r) then
    if afterExpiry == 2 then return answer(GONE, 0, 0, 0, 0, r.id, '') end
    if mode ~= TAKE then forget(due, ids, r.id) end
    return claimFree(n, due, ids, false)
  end
  local fingerprint
  _, token, _, _, fingerprint = struct.unpack(TEXTS, texts, 3)
  if r[STATE] == HELD and r.token == token then
    local from = r[ATTEMPT] == 1 and 1 or 2
    return answer(CLAIMED, from, r[ATTEMPT], 0, r[EXPIRES_AT], r.id, r.recoveryPoint)
  end
  if r.fingerprint ~= fingerprint then
    return answer(MISMATCH, 0, 0, 0, 0, r.id, r.fingerprint)
  end
  return claimExisting(n, due, r)
end

local answers = {}
for n = 1, count do
  local bucket, last = string.byte(packed, at), at + 29 + struct.unpack('<H', packed, at + 28)
  policy, texts = string.sub(packed, at + 1, at + 27), string.sub(packed, at + 28, last)
  at = last + 1
  answers[n] = claim(n, KEYS[2 * bucket - 1], KEYS[2 * bucket])
end
flush()
answers[count + 1] = string.format('%.0f', now)
return answers
`

/**
 * Settles leases, as `decideSettle` does. The fence is the token and the attempt: once another
 * attempt has claimed the key, the earlier holder changes nothing. An answer is whether the lease
 * is settled, whether the token is that of the record, the state (0: absent), and the expiry.
 */
export const SETTLE = `${PRELUDE}
local COMPLETE, RELEASE, DOUBT = 1, 2, 3
local STATES = { DONE, FREE, UNKNOWN }
local packed, at = ARGV[3], 1

local function settle(n, due, kind, proof, attempt, ms, token, errorCode, result)
  local r = read(n)
  if not r then return struct.pack('<BBBd', 0, 0, 0, 0) end
  local before = r[STATE]
  local anyAttempt = kind == RELEASE and attempt == 0
  if r.token ~= token or not (anyAttempt or r[ATTEMPT] == attempt) then
    return struct.pack('<BBBd', 0, 0, before, 0)
  end
  if before == STATES[kind] then return struct.pack('<BBBd', 1, 1, before, r[EXPIRES_AT]) end
  local mayMove = before == HELD
    or (kind == COMPLETE and (before == UNKNOWN or before == FREE))
    or (kind == RELEASE and before == UNKNOWN and proof == 1)
  if not mayMove then return struct.pack('<BBBd', 0, 1, before, 0) end

  if kind == COMPLETE then
    complete(r, token, ms)
    write(n, due, r, before, result)
  else
    setTexts(r, token, errorCode)
    if kind == RELEASE then
      r[STATE], r[PROOF], r[RECONCILE_AT] = FREE, proof, -1
      r[EXPIRES_AT] = math.max(r[EXPIRES_AT], now + ms)
    else
      r[STATE], r[RECONCILE_AT] = UNKNOWN, now + ms
    end
    write(n, due, r, before)
  end
  return struct.pack('<BBBd', 1, 1, r[STATE], r[EXPIRES_AT])
end

-- The parts of a completion that depend only on its expiry, and not on the record or its result.
local FRONT, FRONT_BYTES, LEASE = '<BBBBddd', 28, '<BBBBdddBBI4I4dddHHc0Hc0'
local completions = {}
local function completionOf(expiresAt)
  local completion = completions[expiresAt]
  if not completion then
    completion = { front = struct.pack(FRONT, ${LAYOUT}, DONE, 0, 1, -1, now, expiresAt),
      score = scoreOf(DONE, expiresAt), vanishAt = vanishAt(expiresAt),
      answer = struct.pack('<BBBd', 1, 1, DONE, expiresAt) }
    completions[expiresAt] = completion
  end
  return completion
end

-- The common case of settle(), without unpacking the whole record. Returns nil in other cases.
local function completeHeld(n, due, attempt, ms, token, result)
  local data = dataOf(n)
  if not data then return nil end
  local _, state, expiresAt, afterExpiry, held, id, owner
  _, state, _, _, _, _, expiresAt, _, afterExpiry, held, _, _, _, _, _, id, owner =
    struct.unpack(LEASE, data)
  if state ~= HELD or held ~= attempt or owner ~= token then return nil end
  local completion = completionOf(math.max(expiresAt, now + ms))
  put(n, completion.front .. string.sub(data, FRONT_BYTES + 1) .. result,
    afterExpiry == 1 and completion.vanishAt)
  redis.call('ZADD', due, completion.score, id)
  return completion.answer
end

local answers = {}
for n = 1, count do
  local bucket, kind, proof, attempt, ms, token, errorCode, result
  bucket, kind, proof, attempt, ms, token, errorCode, result, at =
    struct.unpack('<BBBI4dHc0Hc0I4c0', packed, at)
  local due = KEYS[2 * bucket - 1]
  answers[n] = kind == COMPLETE and completeHeld(n, due, attempt, ms, token, result)
    or settle(n, due, kind, proof, attempt, ms, token, errorCode, result)
end
flush()
return answers
`

/** Renews leases that are held with this token and attempt. An answer is '1' if it did, or '0'. */
export const RENEW = `${PRELUDE}
local packed, at = ARGV[3], 1
local answers = {}
for n = 1, count do
  local bucket, attempt, leaseMs, token
  bucket, attempt, leaseMs, token, at = struct.unpack('<BI4dHc0', packed, at)
  local r = read(n)
  local holds = r and r[STATE] == HELD and r.token == token and r[ATTEMPT] == attempt
  if holds then
    r[LEASE_UNTIL], r[LEASE_MS] = now + leaseMs, leaseMs
    write(n, KEYS[2 * bucket - 1], r)
  end
  answers[n] = holds and '1' or '0'
end
flush()
return answers
`
