import { randomUUID } from 'node:crypto'
import type { DatabaseSync } from 'node:sqlite'
import type { EffectKind, EffectRequest, LedgerPage, ProviderEffect } from './contract.ts'
import { inTransaction, type Database } from './database.ts'

/** A request in progress. */
export interface KeyedRequest extends EffectRequest {
  readonly kind: EffectKind
  readonly key: string
}

/** The state of a key for a new request under it. */
export type KeyState =
  | { readonly kind: 'free' }
  | { readonly kind: 'done'; readonly effect: ProviderEffect }
  | { readonly kind: 'in_progress' }
  | { readonly kind: 'reused' }

export interface LateEffect {
  readonly key: string
  readonly dueMs: number
}

export interface LedgerOptions {
  readonly database: Database
  readonly keyRetentionMs: number
  readonly now: () => number
  /** Called in the transaction of each effect: its writes commit with the effect. */
  readonly announce: (effect: ProviderEffect) => void
}

export interface Ledger {
  standingOf(request: KeyedRequest): KeyState
  /** When it returns, the effect is on the disk. */
  perform(request: KeyedRequest): ProviderEffect
  /** Schedules an effect. Its key is in progress until then, even after a restart. */
  postpone(request: KeyedRequest, afterMs: number): LateEffect
  /** Makes a scheduled effect, unless it was made before. */
  performLate(key: string): void
  listLate(): LateEffect[]
  findById(id: string): ProviderEffect | undefined
  /** The first effect of the key, regardless of its age. */
  findByKey(key: string): ProviderEffect | undefined
  list(filter: LedgerFilter): LedgerPage
}

export interface LedgerFilter {
  /** Returns effects after this sequence. */
  readonly after: number
  readonly limit: number
  readonly key?: string | undefined
}

const FIELDS = `
  sequence, effect_id AS id, kind, status, key, amount_cents AS amountCents, currency, reference,
  account, of_id AS "of", decline_code AS declineCode, created_at AS createdAt`

const INSERT = `
  INSERT INTO effect (effect_id, kind, status, key, amount_cents, currency, reference, account,
    of_id, decline_code, created_at)
  VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
  RETURNING ${FIELDS}`

const TAKEN = `
  SELECT coalesce(sum(amount_cents), 0) AS cents FROM effect
  WHERE of_id = ? AND kind = ? AND status = 'succeeded'`

/** With an underscore and 32 digits an id has 35 characters. */
const ID_PREFIX: Readonly<Record<EffectKind, string>> = {
  charge: 'ch',
  hold: 'ho',
  capture: 'ca',
  refund: 're',
  payout: 'po',
}

export function newId(prefix: string): string {
  return `${prefix}_${randomUUID().replaceAll('-', '')}`
}

/** Whether two requests under one key are the same request. */
export function isSameRequest(one: KeyedRequest, other: KeyedRequest): boolean {
  const names = ['kind', 'amountCents', 'currency', 'reference', 'account', 'of'] as const
  return names.every((name) => one[name] === other[name])
}

/** All effects, kept permanently in a file. */
export function createLedger(options: LedgerOptions): Ledger {
  return new SqliteLedger(options)
}

class SqliteLedger implements Ledger {
  readonly #options: LedgerOptions
  readonly #db: DatabaseSync
  readonly #statements: ReturnType<typeof prepareAll>

  constructor(options: LedgerOptions) {
    this.#options = options
    this.#db = options.database.durable
    this.#statements = prepareAll(this.#db)
  }

  standingOf(request: KeyedRequest): KeyState {
    const late = this.#statements.readLate.get(request.key) as LateRow | undefined
    if (late !== undefined) {
      return { kind: isSameRequest(readRequest(late), request) ? 'in_progress' : 'reused' }
    }
    const effect = toEffect(this.#statements.lastOfKey.get(request.key))
    if (effect === undefined || this.#isForgotten(effect)) return { kind: 'free' }
    return isSameRequest(effect, request) ? { kind: 'done', effect } : { kind: 'reused' }
  }

  perform(request: KeyedRequest): ProviderEffect {
    return inTransaction(this.#db, () => this.#write(request))
  }

  postpone(request: KeyedRequest, afterMs: number): LateEffect {
    const dueMs = this.#options.now() + afterMs
    this.#statements.insertLate.run(request.key, JSON.stringify(request), dueMs)
    return { key: request.key, dueMs }
  }

  performLate(key: string): void {
    inTransaction(this.#db, () => {
      const late = this.#statements.takeLate.get(key) as LateRow | undefined
      if (late !== undefined) this.#write(readRequest(late))
    })
  }

  listLate(): LateEffect[] {
    return this.#statements.allLate.all() as unknown as LateEffect[]
  }

  findById(id: string): ProviderEffect | undefined {
    return toEffect(this.#statements.byId.get(id))
  }

  findByKey(key: string): ProviderEffect | undefined {
    return toEffect(this.#statements.firstOfKey.get(key))
  }

  list({ after, limit, key }: LedgerFilter): LedgerPage {
    const { page, pageOfKey } = this.#statements
    // One more row than the limit shows whether there is a next page.
    const rows =
      key === undefined ? page.all(after, limit + 1) : pageOfKey.all(key, after, limit + 1)
    const effects = rows.slice(0, limit).map((row) => toEffect(row)!)
    return { effects, next: rows.length > limit ? effects.at(-1)!.sequence : null }
  }

  #isForgotten({ createdAt }: ProviderEffect): boolean {
    return this.#options.now() - Date.parse(createdAt) >= this.#options.keyRetentionMs
  }

  /** The sequence has no gaps: it is the row number, and no row is ever removed. */
  #write(request: KeyedRequest): ProviderEffect {
    const { kind, key, amountCents, currency, reference, account, of = null } = request
    const declineCode = this.#declineCodeOf(request)
    const status = declineCode === null ? 'succeeded' : 'declined'
    const createdAt = new Date(this.#options.now()).toISOString()
    const row = this.#statements.insert.get(
      ...[newId(ID_PREFIX[kind]), kind, status, key, amountCents, currency, reference, account],
      ...[of, declineCode, createdAt],
    )
    const effect = toEffect(row)!
    this.#options.announce(effect)
    return effect
  }

  /** Decided when the effect is made, not when it was requested: two refunds may race. */
  #declineCodeOf({ kind, account, of, currency, amountCents }: KeyedRequest): string | null {
    if (account === 'declined') return 'account_declined'
    if (of === undefined) return null
    const baseKind = kind === 'refund' ? 'charge' : 'hold'
    const base = this.findById(of)
    const isBase = base?.kind === baseKind && base.status === 'succeeded'
    if (!isBase || base.currency !== currency) return `${baseKind}_not_found`
    const { cents } = this.#statements.taken.get(base.id, kind) as { cents: number }
    if (baseKind === 'hold' && cents > 0) return 'hold_taken'
    return amountCents > base.amountCents - cents ? `exceeds_${baseKind}` : null
  }
}

function prepareAll(db: DatabaseSync) {
  const select = `SELECT ${FIELDS} FROM effect`
  return {
    insert: db.prepare(INSERT),
    taken: db.prepare(TAKEN),
    byId: db.prepare(`${select} WHERE effect_id = ?`),
    firstOfKey: db.prepare(`${select} WHERE key = ? ORDER BY sequence LIMIT 1`),
    lastOfKey: db.prepare(`${select} WHERE key = ? ORDER BY sequence DESC LIMIT 1`),
    page: db.prepare(`${select} WHERE sequence > ? ORDER BY sequence LIMIT ?`),
    pageOfKey: db.prepare(`${select} WHERE key = ? AND sequence > ? ORDER BY sequence LIMIT ?`),
    insertLate: db.prepare('INSERT INTO late_effect (key, request, due_ms) VALUES (?, ?, ?)'),
    takeLate: db.prepare('DELETE FROM late_effect WHERE key = ? RETURNING request'),
    readLate: db.prepare('SELECT request FROM late_effect WHERE key = ?'),
    allLate: db.prepare('SELECT key, due_ms AS dueMs FROM late_effect ORDER BY due_ms'),
  }
}

interface LateRow {
  readonly request: string
}

function readRequest({ request }: LateRow): KeyedRequest {
  return JSON.parse(request) as KeyedRequest
}

/** Leaves out fields that are NULL. */
function toEffect(row: Record<string, unknown> | undefined): ProviderEffect | undefined {
  if (row === undefined) return undefined
  const present = Object.entries(row).filter(([, value]) => value !== null)
  return Object.fromEntries(present) as unknown as ProviderEffect
}
