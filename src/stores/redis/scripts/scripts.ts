/** The scripts of claims, settlements and renewals. They follow the rules of `prelude.ts`. */
import { LAYOUT, LISTED_CLASS, PRELUDE } from './prelude.ts'

/**
 * Claims keys. Of claims that race for a key, the first script wins, and the others read its
 * record. The checks have the order of `decideClaim`, or of `decideFind` with the mode `find`. An
 * answer is a code, a detail, the attempt, a time span, the expiry, the record id, a text, and the
 * result to replay or the id seed. An empty record id means that of the request, whose seed is then
 * the seed of the record. The time follows the answers. ARGV[5] may be a deadline: a later script
 * claims nothing.
 */
export const CLAIM = `${PRELUDE}
local deadline = tonumber(ARGV[5])
if deadline and now > deadline then
  return redis.error_reply('LATE ' .. string.format('%.0f', now))
end

local CLAIMED, COMPLETED, IN_PROGRESS, WAITING, DOUBTFUL, MISMATCH, GONE = 1, 2, 3, 4, 5, 6, 7
local AVAILABLE = 8
local ACCEPT, TAKE, FIND = 2, 3, 4
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

-- The texts of a claim follow the length of them all.
local function tailOfClaim()
  return tailOf(texts, 3)
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
  if head.mode == FIND then return answer(AVAILABLE, 1, 0, 0, 0, '', '') end
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

local function claimed(r, from, seed)
  return answer(CLAIMED, from, r[ATTEMPT], 0, r[EXPIRES_AT], r.id, r.recoveryPoint) .. seed
end

local function claimAgain(n, due, r, lapses, from)
  local accepting, before = mode == ACCEPT, r[STATE]
  r[STATE], r[LAPSES] = accepting and PENDING or HELD, lapses
  if not accepting then r[ATTEMPT] = r[ATTEMPT] + 1 end
  r[LEASE_UNTIL] = accepting and now or now + leaseMs
  r[ON_LAPSE], r[AFTER_EXPIRY] = lapsePolicy(lapses), afterExpiry
  r[PROOF], r[LEASE_MS], r[LAST_RUN_AT] = 0, accepting and -1 or leaseMs, now
  r[EXPIRES_AT] = math.max(r[EXPIRES_AT], now + retentionMs)
  local tail, refuseForMs = tailOfRecord(r), tailOfClaim().refuseForMs
  local isChanged = tail.refuseForMs ~= refuseForMs
  tail.refuseForMs = refuseForMs
  setTexts(r, token, '', isChanged and packTail(tail))
  write(n, due, r, before)
  if accepting then return answer(WAITING, 1, 0, 0, r[EXPIRES_AT], r.id, '') end
  return claimed(r, from, tail.seed)
end

local function inDoubt(r, lapsed)
  return answer(DOUBTFUL, lapsed, r[ATTEMPT], math.max(0, r[RECONCILE_AT] - now), 0, r.id, '')
end

local function completed(r)
  return answer(COMPLETED, 0, 0, 0, r[EXPIRES_AT], r.id, '') .. resultOf(r)
end

local function available(r, from)
  return answer(AVAILABLE, from, 0, 0, 0, r.id, '')
end

local function findExisting(r)
  local state, expiresAt, leftMs = r[STATE], r[EXPIRES_AT], r[LEASE_UNTIL] - now
  if state == DONE then
    return completed(r)
  elseif state == HELD and leftMs > 0 then
    return answer(IN_PROGRESS, 0, 0, leftMs, expiresAt, r.id, '')
  elseif state == HELD and r[ON_LAPSE] == 1 then
    -- No reconciliation is scheduled yet, so there is no time to wait for.
    return answer(DOUBTFUL, 0, r[ATTEMPT], 0, 0, r.id, '')
  elseif state == UNKNOWN then
    return inDoubt(r, 0)
  elseif state == PENDING then
    return answer(WAITING, 0, 0, 0, expiresAt, r.id, '')
  end
  return available(r, state == HELD and 3 or 2)
end

local function claimExisting(n, due, r)
  local state, expiresAt = r[STATE], r[EXPIRES_AT]
  if state == DONE then
    return completed(r)
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

-- Whether the expired key stays refused: as the policy of the claim says, or because the record was
-- erased before its expiry.
local function isRefused(r)
  if r[STATE] == EXPIRED and now < r[EXPIRES_AT] then return true end
  if afterExpiry ~= 2 then return false end
  local refuseForMs = tailOfClaim().refuseForMs
  return refuseForMs < 0 or now < r[EXPIRES_AT] + refuseForMs
end

local function claim(n, due, ids)
  local r = read(n)
  if not r then return claimFree(n, due, ids, true) end
  readPolicy()
  if isExpired(r) then
    if isRefused(r) then return answer(GONE, 0, 0, 0, 0, r.id, '') end
    if mode == FIND then return available(r, 4) end
    if mode ~= TAKE then forget(due, ids, r.id) end
    return claimFree(n, due, ids, false)
  end
  local fingerprint
  _, token, _, _, fingerprint = struct.unpack(TEXTS, texts, 3)
  if r[STATE] == HELD and r.token == token and mode ~= FIND then
    return claimed(r, r[ATTEMPT] == 1 and 1 or 2, tailOfRecord(r).seed)
  end
  if r.fingerprint ~= fingerprint then
    return answer(MISMATCH, 0, 0, 0, 0, r.id, r.fingerprint)
  end
  if mode == FIND then return findExisting(r) end
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
