import type { RecordState, StoredRecord } from '../../core/record/record.ts'
import type { RecordRef } from '../../core/store/store.ts'
import { toRecord } from './scripts/answers.ts'
import type { Bucket, Buckets } from './buckets.ts'
import { ROWS_MAX, type Calls } from './calls.ts'
import { checkIdentity, type Candidate } from './scripts/requests.ts'
import { LISTED_CLASS, SCORE_SPAN, STATE_CODES, TOMBSTONE_CLASS } from './scripts/prelude.ts'
import { FIND, LATEST, PEEK, RANGE } from './scripts/upkeep.ts'

/** Stands for the identity of a record that `due` names and `ids` does not. */
const NO_IDENTITY = '0'.repeat(32)

/** States that have a second index entry: they are listed by last run, but move at another time. */
const LISTED_BY_LAST_RUN: readonly RecordState[] = ['pending', 'failed_retryable']

/**
 * Records in progress are also listed by last run, but are indexed only by the end of their lease:
 * a second entry would cost every claim and every settlement a write. So up to this many are read
 * and sorted.
 */
const HELD_MAX = 10_000

/** Most entries that one script returns: the server does nothing else while a script runs. */
const PAGE = 500

/** Read from every bucket at first, in addition to its fair share: that is usually enough. */
const SHARE_MIN = 8

interface Range {
  readonly untilMs: number
  readonly limit: number
  readonly signal: AbortSignal | undefined
}

interface PageQuery {
  readonly script: string
  readonly numbers: readonly number[]
  readonly signal: AbortSignal | undefined
}

/** Finds records by record id, state or time: across all buckets, in steps of bounded size. */
export class RecordIndex {
  readonly #calls: Calls
  readonly #buckets: Buckets

  constructor(calls: Calls, buckets: Buckets) {
    this.#calls = calls
    this.#buckets = buckets
  }

  /** Returns the identity of a record. A reference by identity is not looked up. */
  async find(ref: RecordRef, signal?: AbortSignal): Promise<string | undefined> {
    if (ref.identity !== undefined) {
      checkIdentity(ref.identity)
      return ref.identity
    }
    const keys = this.#buckets.all.map(({ ids }) => ids)
    const answers = await this.#calls.detectingCluster(() => {
      const groups = this.#calls.isCluster ? keys.map((key) => [key]) : [keys]
      const args = [ref.recordId]
      return Promise.all(
        groups.map((group) => this.#calls.ask(FIND, { keys: group, args }, signal)),
      )
    })
    return answers.map(String).find((identity) => identity !== '')
  }

  /**
   * Returns the records whose next move is due, the longest overdue first. The next move of an
   * `expired` record is its removal when its refusal ends; a refusal that does not end is not read.
   */
  async earliest(states: readonly RecordState[], range: Range): Promise<Candidate[]> {
    const classes = states.map((state) =>
      state === 'expired' ? TOMBSTONE_CLASS : STATE_CODES.indexOf(state),
    )
    return this.#first(classes, range)
  }

  /** Returns the held records whose leases end last, and at `untilMs` or later. */
  async latestHeld({ untilMs, limit, signal }: Range): Promise<Candidate[]> {
    const code = STATE_CODES.indexOf('in_progress')
    const share = SHARE_MIN + Math.ceil(limit / this.#buckets.all.length)
    const ask = { script: LATEST, numbers: [code, untilMs, share], signal }
    const parts = await Promise.all(this.#buckets.all.map((bucket) => this.#page(bucket, ask)))
    return parts.flat()
  }

  async list(
    state: RecordState,
    { limit, signal }: { readonly limit: number; readonly signal: AbortSignal | undefined },
  ): Promise<StoredRecord[]> {
    const code = STATE_CODES.indexOf(state)
    const classes = [LISTED_BY_LAST_RUN.includes(state) ? LISTED_CLASS + code : code]
    const isHeld = state === 'in_progress'
    const listed = await this.#first(classes, {
      untilMs: SCORE_SPAN - 1,
      limit: isHeld ? Math.max(limit, HELD_MAX) : limit,
      signal,
    })
    const records: StoredRecord[] = []
    // In pieces: a script that reads thousands of records would block all other clients.
    for (let at = 0; at < listed.length; at += ROWS_MAX) {
      const piece = listed.slice(at, at + ROWS_MAX)
      records.push(...(await this.#calls.detectingCluster(() => this.#peek(piece, signal))))
    }
    if (isHeld) records.sort((a, b) => a.lastRunAtMs - b.lastRunAtMs)
    return records.filter((record) => record.state === state).slice(0, limit)
  }

  /** Merges the entries of all buckets, and returns the first `range.limit` of them. */
  async #first(classes: readonly number[], range: Range): Promise<Candidate[]> {
    if (range.limit < 1) return []
    const share = SHARE_MIN + Math.ceil((2 * range.limit) / this.#buckets.all.length)
    const first = { ...range, limit: Math.min(range.limit, share) }
    const sources = classes.flatMap((code) => this.#buckets.all.map((bucket) => ({ code, bucket })))
    const parts = await Promise.all(
      sources.map(async ({ code, bucket }) => ({
        code,
        bucket,
        found: await this.#range(bucket, code, first),
      })),
    )
    const cut = merge(
      parts.map(({ found }) => found),
      range.limit,
    )
    const lastMs = cut.length < range.limit ? Infinity : cut.at(-1)!.atMs
    // A bucket that returned its whole share may have more entries before the cut.
    const whole = await Promise.all(
      parts.map(async ({ code, bucket, found }) => {
        const isFull = found.length === first.limit && first.limit < range.limit
        return isFull && found.at(-1)!.atMs < lastMs ? this.#range(bucket, code, range) : found
      }),
    )
    return merge(whole, range.limit)
  }

  async #range(bucket: Bucket, code: number, range: Range): Promise<Candidate[]> {
    const { untilMs, limit, signal } = range
    const candidates: Candidate[] = []
    for (let at = 0; at < limit; at += PAGE) {
      const count = Math.min(PAGE, limit - at)
      const numbers = [code, untilMs, at, count]
      const page = await this.#page(bucket, { script: RANGE, numbers, signal })
      candidates.push(...page)
      if (page.length < count) break
    }
    return candidates
  }

  async #page(bucket: Bucket, { script, numbers, signal }: PageQuery): Promise<Candidate[]> {
    const keys = [bucket.due, bucket.ids]
    const args = numbers.map(String)
    const found = (await this.#calls.ask(script, { keys, args }, signal)) as Buffer[]
    const answers = found.map(String)
    const candidates: Candidate[] = []
    for (let n = 0; n < answers.length; n += 3) {
      const [recordId, at, identity] = answers.slice(n, n + 3) as [string, string, string]
      // A script for this candidate must reach the bucket, and then removes its index entries.
      const placeholder = bucketPrefix(this.#buckets, bucket) + NO_IDENTITY.slice(2)
      candidates.push({ recordId, atMs: Number(at), identity: identity || placeholder })
    }
    return candidates
  }

  async #peek(
    candidates: readonly Candidate[],
    signal: AbortSignal | undefined,
  ): Promise<StoredRecord[]> {
    const groups = new Map<Bucket | undefined, Candidate[]>()
    for (const candidate of candidates) {
      const bucket = this.#calls.isCluster ? this.#buckets.of(candidate.identity) : undefined
      groups.set(bucket, [...(groups.get(bucket) ?? []), candidate])
    }
    const found = new Map<Candidate, StoredRecord>()
    await Promise.all(
      [...groups.values()].map(async (group) => {
        const keys = group.map(({ identity }) => this.#buckets.of(identity).base + identity)
        const answers = (await this.#calls.ask(PEEK, { keys }, signal)) as Buffer[]
        for (const [n, candidate] of group.entries()) {
          const data = answers[n]!
          if (data.length > 0) found.set(candidate, toRecord(data, candidate.identity))
        }
      }),
    )
    return candidates.flatMap((candidate) => found.get(candidate) ?? [])
  }
}

function bucketPrefix(buckets: Buckets, bucket: Bucket): string {
  return buckets.all.indexOf(bucket).toString(16).padStart(2, '0')
}

function merge(parts: readonly (readonly Candidate[])[], limit: number): Candidate[] {
  // A record that moved while the pages were read may be on two of them.
  const byId = new Map(parts.flat().map((candidate) => [candidate.recordId, candidate]))
  return [...byId.values()].sort((a, b) => a.atMs - b.atMs).slice(0, limit)
}
