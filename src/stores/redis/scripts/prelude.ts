/**
 * The layout of a record, and the functions that all scripts share. The scripts implement the
 * decisions of `core/record/decide.ts` in the server. Redis runs one script at a time, so the
 * records that a script reads do not change until it has written them.
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
export const MODE_CODES = [undefined, 'hold', 'accept', 'take', 'find'] as const
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
  'free',
] as const
export const FROM_CODES = [undefined, 'new', 'retry', 'lapsed', 'expired', 'accepted'] as const

/** A score in `due` is a class times this number plus a time. A double represents it exactly. */
export const SCORE_SPAN = 2 ** 48

/** Added to the class of the second entry of a record, which has the time of its last run. */
export const LISTED_CLASS = 8

/** The class of the second entry of a tombstone, which has the end of its refusal. */
export const TOMBSTONE_CLASS = 7

/** Size of a record before its texts. The last two bytes contain the length of the texts. */
export const HEAD_BYTES = 64

/** The version byte of the layout below. */
export const LAYOUT = 1

/** Ends the name of a key inside its text: see the layout below. No UTF-8 contains this byte. */
export const NAME_END = 0xff

/**
 * Redis removes records this long after their expiry, and tombstones this long after the end of
 * their refusal, in case no reaper runs. Usually the reaper comes first, and also cleans up the
 * indexes.
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
 * The text of the key is its name. If the record has an id seed or a `refuseForMs`, the name is
 * followed by the byte `NAME_END`, `refuseForMs` as a double (-1: none), and the 16 bytes of the
 * seed (or nothing). Versions without these fields copy the text of the key in every move and never
 * compare it. Their claims write a new text when they replace the record, so a seed never outlives
 * its record id. They show what follows the name to operators, as a part of the key. No other place
 * is safe: these versions read the result directly after the key, and write all other bytes.
 *
 * While a record is held, the field of `reconcileAt` contains the length of its lease, or -1 if a
 * node of an older version gave the lease. Such a node writes -1 there with every claim, so the
 * length never belongs to another lease.
 *
 * `due` contains each record id with the time of its next move: the end of its lease, or its
 * expiry. `unknown` and `expired` records have no such time, so they have that of their last run.
 * `pending` and `failed_retryable` records are listed by last run but move at another time, so they
 * have a second entry: `@` and the id. An `expired` record whose refusal ends (`reconcileAt`) has
 * one of a separate class, so that `reap` reads no record that is refused for ever. Older versions
 * do not read this class, and remove a second entry with its record.
 */
export const PRELUDE = `
local PENDING, HELD, DONE, FREE, UNKNOWN, EXPIRED = 1, 2, 3, 4, 5, 6
local HEAD, HEAD_BYTES, TEXTS = '<BBBBdddBBI4I4dddH', ${HEAD_BYTES}, '<Hc0Hc0Hc0Hc0Hc0'
-- Positions of the fields in the head. Field 1 is the layout, field 13 the time of creation.
local STATE, PROOF, HAS_RESULT, RECONCILE_AT, COMPLETED_AT, EXPIRES_AT = 2, 3, 4, 5, 6, 7
local ON_LAPSE, AFTER_EXPIRY, ATTEMPT, LAPSES, LEASE_UNTIL, LAST_RUN_AT = 8, 9, 10, 11, 12, 14
local TEXT_BYTES = 15
local LEASE_MS = RECONCILE_AT
local ALL_TEXTS, TAIL, MORE = TEXTS .. 'Hc0Hc0Hc0', TEXTS, '<Bd'

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

-- Unpacks the texts after the error code, of a record or of a claim, and what follows the key.
local function tailOf(data, at)
  local t, text, _ = { refuseForMs = -1, seed = '' }
  _, _, _, t.recoveryPoint, t.fingerprint, t.tenant, t.operation, text =
    struct.unpack(ALL_TEXTS, data, at)
  local nameEnd = string.find(text, '\\${NAME_END}', 1, true)
  t.key = nameEnd and string.sub(text, 1, nameEnd - 1) or text
  if nameEnd then
    _, t.refuseForMs = struct.unpack(MORE, text, nameEnd)
    t.seed = string.sub(text, nameEnd + 9)
  end
  return t
end

local function tailOfRecord(r)
  return tailOf(r.data, HEAD_BYTES + 1)
end

local function packTail(t)
  local key = t.key
  if t.refuseForMs >= 0 or t.seed ~= '' then
    key = key .. struct.pack(MORE, ${NAME_END}, t.refuseForMs) .. t.seed
  end
  return struct.pack(TAIL, #t.recoveryPoint, t.recoveryPoint, #t.fingerprint, t.fingerprint,
    #t.tenant, t.tenant, #t.operation, t.operation, #key, key)
end

-- Replaces the token and the error code among the texts, and the packed texts after them if given.
local function setTexts(r, token, errorCode, tail)
  if token == r.token and errorCode == r.errorCode and not tail then return end
  local rest = HEAD_BYTES + 7 + #r.id + #r.token + #r.errorCode
  r.texts = struct.pack('<Hc0Hc0Hc0', #r.id, r.id, #token, token, #errorCode, errorCode)
    .. (tail or string.sub(r.data, rest, HEAD_BYTES + r[TEXT_BYTES]))
  r[TEXT_BYTES] = #r.texts
end

local function scoreOf(class, at)
  local ms = math.max(0, math.min(math.floor(at), ${SCORE_SPAN - 1}))
  return string.format('%.0f', class * ${SCORE_SPAN} + ms)
end

-- When the refusal of a tombstone ends, if it does. An older version that ends a lease and then the
-- record may leave the length of the lease here, which is less than any expiry.
local function tombstoneEnd(r)
  return r[STATE] == EXPIRED and r[RECONCILE_AT] >= r[EXPIRES_AT] and r[RECONCILE_AT]
end

-- \`before\`: the state before the move.
local function index(due, r, before)
  local state, at = r[STATE], r[LAST_RUN_AT]
  if state == HELD then at = r[LEASE_UNTIL] elseif state <= FREE then at = r[EXPIRES_AT] end
  local ends, second = tombstoneEnd(r), nil
  if state == PENDING or state == FREE then
    second = scoreOf(${LISTED_CLASS} + state, r[LAST_RUN_AT])
  elseif ends then
    second = scoreOf(${TOMBSTONE_CLASS}, ends)
  end
  if second then
    redis.call('ZADD', due, scoreOf(state, at), r.id, second, '@' .. r.id)
  else
    redis.call('ZADD', due, scoreOf(state, at), r.id)
    if before == PENDING or before == FREE then redis.call('ZREM', due, '@' .. r.id) end
  end
end

local function flush()
  if #unsent > 0 then redis.call('MSET', unpack(unsent)) end
  unsent = {}
end

-- Only a record that a new claim may replace, or whose refusal ends, gets a TTL, and never by a
-- test's clock.
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

local function vanishAt(ms)
  return string.format('%.0f', math.floor(ms) + ${LINGER_MS})
end

local function write(n, due, r, before, result)
  r[HAS_RESULT] = result and 1 or 0
  local texts = r.texts or string.sub(r.data, HEAD_BYTES + 1, HEAD_BYTES + r[TEXT_BYTES])
  local data = struct.pack(HEAD, unpack(r, 1, TEXT_BYTES)) .. texts .. (result or '')
  local ends = tombstoneEnd(r)
  if (r[STATE] == DONE or r[STATE] == FREE) and r[AFTER_EXPIRY] == 1 then ends = r[EXPIRES_AT] end
  put(n, data, ends and vanishAt(ends))
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
