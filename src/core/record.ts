/** Every state a record can be in. `docs/concepts/state-machine.md` explains each. */
export const RECORD_STATES = [
  'pending',
  'in_progress',
  'completed',
  'failed_retryable',
  'unknown',
  'expired',
] as const

export type RecordState = (typeof RECORD_STATES)[number]

/**
 * The legal moves, as data: from a state, by a move, to a state. A pair that is not listed cannot
 * happen, whoever asks. `absent` stands for "no record".
 *
 * `complete` and `release` on `unknown`, and `complete` on `failed_retryable`, are open only to
 * the holder whose token the record still carries: it alone knows what it did.
 */
export const MOVES = {
  absent: { claim: 'in_progress', accept: 'pending' },
  pending: { claim: 'in_progress', abandon: 'completed' },
  in_progress: {
    complete: 'completed',
    release: 'failed_retryable',
    doubt: 'unknown',
    lapse_to_unknown: 'unknown',
    lapse_to_retryable: 'failed_retryable',
    take_over: 'in_progress',
    accept_lapsed: 'pending',
    hand_over: 'pending',
    operator_release: 'failed_retryable',
  },
  completed: {
    expire: 'expired',
    remove: 'absent',
    claim_expired: 'in_progress',
    accept_expired: 'pending',
  },
  failed_retryable: {
    claim: 'in_progress',
    accept: 'pending',
    complete: 'completed',
    expire: 'expired',
    remove: 'absent',
    claim_expired: 'in_progress',
    accept_expired: 'pending',
  },
  unknown: {
    complete: 'completed',
    release: 'failed_retryable',
    resolve_completed: 'completed',
    resolve_retryable: 'failed_retryable',
    operator_release: 'failed_retryable',
  },
  expired: { claim_expired: 'in_progress', accept_expired: 'pending', remove: 'absent' },
} as const satisfies Record<RecordState | 'absent', Partial<Record<string, RecordState | 'absent'>>>

export type MoveName = {
  [State in keyof typeof MOVES]: keyof (typeof MOVES)[State]
}[keyof typeof MOVES]

/** The state that `move` leads to, or `undefined` where the move is not legal. */
export function nextState(
  from: RecordState | 'absent',
  move: MoveName,
): RecordState | 'absent' | undefined {
  return (MOVES[from] as Partial<Record<MoveName, RecordState | 'absent'>>)[move]
}

/** What becomes of a record whose holder fell silent. Decided when it is claimed. */
export type OnLapse = 'unknown' | 'rerun' | 'resume'

/** May a new request use a key again once its record has expired? */
export type AfterExpiry = 'new' | 'refuse'

/** How it is known that a `failed_retryable` record had no effect. */
export type Proof = 'proven' | 'declared'

/**
 * A record as stores keep it. Times are epoch milliseconds of the store's clock; contracts and
 * views show them as `Date`.
 */
export interface StoredRecord {
  /** Hash over tenant, operation and key, as 32 hexadecimal characters: the primary key. */
  readonly identity: string
  /** Opaque and random. It survives retries; a new record after expiry gets a new one. */
  readonly recordId: string
  readonly tenant: string
  readonly operation: string
  /** As the client sent it. For operators only: never in logs, events or metrics. */
  readonly key: string
  readonly fingerprint: string
  readonly state: RecordState
  /** Counts every run of this record, so 0 until the first. With `token` it is the fence. */
  readonly attempt: number
  /** Counts the holders that fell silent, so that a poisonous request stops somewhere. */
  readonly lapses: number
  readonly token: string
  readonly leaseUntilMs: number
  /**
   * How long the lease was when it was last given. `undefined`: no node that knows of it has given
   * it.
   */
  readonly leaseMs: number | undefined
  readonly onLapse: OnLapse
  readonly afterExpiry: AfterExpiry
  readonly proof: Proof | undefined
  /** The last finished phase of its operation; set exactly where it has an operation. */
  readonly recoveryPoint: string | undefined
  readonly result: Uint8Array | undefined
  readonly errorCode: string | undefined
  /**
   * When somebody should look at it: to reconcile it, where it is `unknown`; to run its operation,
   * where it is `pending`, or released with a recovery point.
   */
  readonly reconcileAtMs: number | undefined
  /** How often it was looked into since it became `unknown`. */
  readonly tries: number
  readonly createdAtMs: number
  readonly lastRunAtMs: number
  readonly completedAtMs: number | undefined
  readonly expiresAtMs: number
}
