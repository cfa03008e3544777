/** The scripts of verdicts, maintenance and reading. They follow the rules of `prelude.ts`. */
import { DISCARDED } from '../../../core/record/decide-discard.ts'
import { HEAD_BYTES, PRELUDE, SCORE_SPAN } from './prelude.ts'

/** The effects of `REAP` on a candidate, by their code. */
export const REAP_CODES = [undefined, 'removed', 'expired', 'abandoned'] as const

/**
 * Resolves unknown records, as `decideResolve` does. A verdict that completes removes the token, so
 * that a late holder reads the verdict instead of settling again. An answer is '0' (not found), '1'
 * and a state (not unknown), '2' and an attempt (another attempt), or '3' and the record.
 */
export const RESOLVE = `${PRELUDE}
local packed, at = ARGV[3], 1

local function resolve(n, due, id, completed, attempt, retentionMs, result)
  local r = read(n)
  if not r or (id ~= '' and r.id ~= id) then return '0' end
  if r[STATE] ~= UNKNOWN then return '1' .. struct.pack('<B', r[STATE]) end
  if attempt >= 0 and attempt ~= r[ATTEMPT] then return '2' .. struct.pack('<I4', r[ATTEMPT]) end
  if completed == 1 then
    complete(r, '', retentionMs)
    return '3' .. write(n, due, r, UNKNOWN, result)
  end
  r[STATE], r[PROOF], r[RECONCILE_AT] = FREE, 1, -1
  r[EXPIRES_AT] = math.max(r[EXPIRES_AT], now + retentionMs)
  return '3' .. write(n, due, r, UNKNOWN)
end

local answers = {}
for n = 1, count do
  local bucket, completed, attempt, retentionMs, id, result
  bucket, completed, attempt, retentionMs, id, result, at =
    struct.unpack('<BBddHc0I4c0', packed, at)
  answers[n] = resolve(n, KEYS[2 * bucket - 1], id, completed, attempt, retentionMs, result)
end
flush()
return answers
`

/**
 * Takes the result from completed records, as `decideDiscard` does. An answer is '0' (not found),
 * '1', a state and the record id (not completed), '2', an attempt and the record id (another
 * attempt), or '3' (discarded) or '4' (discarded before) and the record.
 */
export const DISCARD = `${PRELUDE}
local DECLARED = 2
local packed, at = ARGV[3], 1

local function discard(n, due, id, attempt, seed)
  local r = read(n)
  if not r or (id ~= '' and r.id ~= id) then return '0' end
  if attempt ~= r[ATTEMPT] then return '2' .. struct.pack('<I4', r[ATTEMPT]) .. r.id end
  if r[STATE] == FREE and r.errorCode == '${DISCARDED}' then return '4' .. r.data end
  if r[STATE] ~= DONE then return '1' .. struct.pack('<B', r[STATE]) .. r.id end
  local tail = tailOfRecord(r)
  if seed ~= '' then tail.seed = seed end
  setTexts(r, '', '${DISCARDED}', packTail(tail))
  r[STATE], r[PROOF], r[RECONCILE_AT], r[COMPLETED_AT] = FREE, DECLARED, -1, -1
  return '3' .. write(n, due, r, DONE)
end

local answers = {}
for n = 1, count do
  local bucket, attempt, id, seed
  bucket, attempt, id, seed, at = struct.unpack('<BdHc0I4c0', packed, at)
  answers[n] = discard(n, KEYS[2 * bucket - 1], id, attempt, seed)
end
flush()
return answers
`

/**
 * Reads the record of a candidate. Another script found the candidate in an index, and its record
 * may have changed since then, so the calling script checks every condition again. If the TTL has
 * removed the record, or a new record has replaced it, its index entries are removed.
 */
const CANDIDATE = `
local packed, at = ARGV[3], 1

local function nextCandidate(n)
  local bucket, id
  bucket, id, at = struct.unpack('<BHc0', packed, at)
  local due, ids = KEYS[2 * bucket - 1], KEYS[2 * bucket]
  local r = read(n)
  if r and r.id == id then return due, ids, r end
  forget(due, ids, id)
end
`

/** Makes the move of lapsed records. An answer is the record after its move, or empty. */
export const SWEEP = `${PRELUDE}${CANDIDATE}
local answers = {}
for n = 1, count do
  local due, ids, r = nextCandidate(n)
  answers[n] = ''
  if r and r[STATE] == HELD and r[LEASE_UNTIL] <= now then
    lapse(r)
    answers[n] = write(n, due, r)
  elseif r then
    index(due, r)
  end
end
flush()
return answers
`

/** Shortens leases that were given before the clock was set back. The answers are empty. */
export const SHORTEN = `${PRELUDE}${CANDIDATE}
local answers = {}
for n = 1, count do
  local due, ids, r = nextCandidate(n)
  if r and shorten(r) then write(n, due, r) end
  answers[n] = ''
end
flush()
return answers
`

/**
 * Ends records whose retention or refusal is over, as `decideReap` does. ARGV[5] is '1' if accepted
 * records are to be completed, with the result in ARGV[6], kept for ARGV[7] milliseconds. An answer
 * is a code.
 */
export const REAP = `${PRELUDE}${CANDIDATE}
-- As \`toTombstone\` does.
local function entomb(r)
  local tail = tailOfRecord(r)
  tail.recoveryPoint, tail.fingerprint, tail.key = '', '', ''
  setTexts(r, '', '', packTail(tail))
  r[STATE], r[PROOF] = EXPIRED, 0
  r[RECONCILE_AT] = tail.refuseForMs < 0 and -1 or r[EXPIRES_AT] + tail.refuseForMs
end

local function remove(n, due, ids, r)
  redis.call('DEL', KEYS[buckets + n])
  forget(due, ids, r.id)
  return '1'
end

local function reap(n, due, ids, r)
  local before = r[STATE]
  if before == PENDING and r[EXPIRES_AT] <= now and ARGV[5] == '1' then
    complete(r, '', tonumber(ARGV[7]))
    write(n, due, r, before, ARGV[6])
    return '3'
  elseif (tombstoneEnd(r) or math.huge) <= now then
    return remove(n, due, ids, r)
  elseif before == EXPIRED or not isExpired(r) then
    index(due, r)
    return '0'
  elseif r[AFTER_EXPIRY] == 1 then
    return remove(n, due, ids, r)
  end
  entomb(r)
  write(n, due, r, before)
  return '2'
end

local answers = {}
for n = 1, count do
  local due, ids, r = nextCandidate(n)
  answers[n] = r and reap(n, due, ids, r) or '0'
end
flush()
return answers
`

/**
 * Returns candidates of one bucket, the earliest first: id, time and identity of each. KEYS are its
 * `due` and `ids`. ARGV contains the class, the latest time, how many to skip, and the limit.
 */
export const RANGE = `
local base = ARGV[1] * ${SCORE_SPAN}
local found = redis.call('ZRANGEBYSCORE', KEYS[1], base, base + ARGV[2], 'WITHSCORES', 'LIMIT',
  ARGV[3], ARGV[4])
local answers = {}
for n = 1, #found, 2 do
  local id = found[n]
  if string.sub(id, 1, 1) == '@' then id = string.sub(id, 2) end
  answers[#answers + 1] = id
  answers[#answers + 1] = string.format('%.0f', found[n + 1] - base)
  answers[#answers + 1] = redis.call('HGET', KEYS[2], id) or ''
end
return answers
`

/**
 * Returns records of one bucket whose leases end at a time or later: id, time and identity of each.
 * KEYS are its `due` and `ids`. ARGV contains the class, the time and the limit. Reads one span of
 * time after the other, the latest first: a command that reads backwards would be one more right
 * that the user of the client needs. If a span has more entries than the limit, the earliest of
 * them are returned.
 */
export const LATEST = `
local base, count = ARGV[1] * ${SCORE_SPAN}, tonumber(ARGV[3])
local before, answers = base + ${SCORE_SPAN}, {}
for _, span in ipairs({ 86400000, 14400000, 3600000, 900000, 240000, 60000, 0 }) do
  local left = count - #answers / 3
  if left == 0 then break end
  local from = base + ARGV[2] + span
  local found = redis.call('ZRANGEBYSCORE', KEYS[1], string.format('%.0f', from),
    '(' .. string.format('%.0f', before), 'WITHSCORES', 'LIMIT', 0, left)
  before = from
  for n = 1, #found, 2 do
    answers[#answers + 1] = found[n]
    answers[#answers + 1] = string.format('%.0f', found[n + 1] - base)
    answers[#answers + 1] = redis.call('HGET', KEYS[2], found[n]) or ''
  end
end
return answers
`

/** Returns the identity of a record id, from the first of the `ids` in KEYS that has it. */
export const FIND = `
for n = 1, #KEYS do
  local identity = redis.call('HGET', KEYS[n], ARGV[1])
  if identity then return identity end
end
return ''
`

/** Returns a whole record. A script, because a client may send a plain GET to a replica. */
export const READ = `return redis.call('GET', KEYS[1]) or ''`

/**
 * Returns records without their results, which may be large. Reads the first 1,024 bytes, and reads
 * a second time if the names of the record are longer than that.
 */
export const PEEK = `
local answers = {}
for n = 1, #KEYS do
  local data = redis.call('GETRANGE', KEYS[n], 0, 1023)
  if data ~= '' then
    local length = ${HEAD_BYTES} + struct.unpack('<H', data, ${HEAD_BYTES - 1})
    if length > 1024 then data = redis.call('GETRANGE', KEYS[n], 0, length - 1) end
    data = string.sub(data, 1, length)
  end
  answers[n] = data
end
return answers
`

/**
 * Returns the configuration of the server that has a key, as far as claims depend on it. A script,
 * because `INFO` names no key, and the client of a cluster sends it to any server. The answer is
 * empty if the user has no right to `INFO`.
 */
export const INFO = `local answer = ''
for _, section in ipairs({ 'server', 'memory' }) do
  local info = redis.pcall('INFO', section)
  if type(info) == 'string' then answer = answer .. info end
end
return answer`
