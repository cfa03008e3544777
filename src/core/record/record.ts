/** All states of a record. `docs/concepts/state-machine.md` explains each. */
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
 * The legal moves: for each state, the moves from it and the state that each leads to. A move that
 * is not listed cannot happen. `absent` means that there is no record.
 *
 * `complete` and `release` on `unknown`, and `complete` on `failed_retryable`, are legal only for
 * the holder whose token the record still carries: only this holder knows the outcome.
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
    discard: 'failed_retryable',
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

/** The name of a legal move from any state. */
export type MoveName = {
  [State in keyof typeof MOVES]: keyof (typeof MOVES)[State]
}[keyof typeof MOVES]

/** The state that `move` leads to, or `undefined` if the move is not legal. */
export function nextState(
  from: RecordState | 'absent',
  move: MoveName,
): RecordState | 'absent' | undefined {
  return (MOVES[from] as Partial<Record<MoveName, RecordState | 'absent'>>)[move]
}

/**
 * The policy for a record whose lease lapses, stored when the record is claimed.
 *
 * - `unknown`: the record becomes `unknown`, and waits for a verdict.
 * - `rerun`: a claim takes the record over and runs its work again; a sweep releases it.
 * - `resume`: the same, for the work of an operation, which continues after its recovery point.
 */
export type OnLapse = 'unknown' | 'rerun' | 'resume'

/**
 * Whether a request may use a key whose record has expired. `new` (the policy option
 * `afterExpiry: 'rerun'`): it may, and gets a new record. `refuse`: it may not, and the store keeps
 * a small record for the key: for ever, or for the time of `refuseForMs`.
 */
export type AfterExpiry = 'new' | 'refuse'

/**
 * How it is known that a `failed_retryable` record had no effect. `proven`: for example by a
 * rollback, a verdict or the lapse policy. `declared`: by the failure of the work, or by an
 * operator.
 */
export type Proof = 'proven' | 'declared'

/**
 * A record as stores keep it. Times are epoch milliseconds of the clock of the store. `RecordView`
 * has the fields that readers may see: times as `Date`, and no token.
 */
export interface StoredRecord {
  /** Hash over tenant, operation and key, as 32 hexadecimal characters: the primary key. */
  readonly identity: string
  /** A random UUID. Retries keep it; a new record after the expiry gets a new one. */
  readonly recordId: string
  /**
   * The downstream keys and deterministic ids of the work derive from this seed: 32 hexadecimal
   * characters. `undefined`: they derive from `recordId`, because the policy has `idsFrom:
   * 'record'`, or because a version of the package without seeds has created the record.
   */
  readonly idSeed: string | undefined
  readonly tenant: string
  readonly operation: string
  /**
   * The key as the client sent it. For operators only: never in logs, events or metrics. Empty on
   * `expired` records.
   */
  readonly key: string
  /**
   * Hash of the request. A claim with another fingerprint is a `mismatch`. Empty on `expired`
   * records.
   */
  readonly fingerprint: string
  readonly state: RecordState
  /** Number of runs so far; 0 before the first. Together with `token` it is the fence. */
  readonly attempt: number
  /**
   * Number of lapses that did not make the record `unknown`. `maxLapses` bounds it, so that a
   * request that crashes its process does not run for ever.
   */
  readonly lapses: number
  /** Token of the last claim that took or accepted the record. Empty: no lease may settle it. */
  readonly token: string
  readonly leaseUntilMs: number
  /**
   * Length of the lease when it was last granted or renewed. `undefined`: there is no lease, or a
   * version of the package without this field has granted it.
   */
  readonly leaseMs: number | undefined
  readonly onLapse: OnLapse
  /** `new` is the stored form of the option `rerun`. */
  readonly afterExpiry: AfterExpiry
  /**
   * How long after its expiry the key stays refused, with `afterExpiry: 'refuse'`. `undefined`: for
   * ever.
   */
  readonly refuseForMs: number | undefined
  /** Set on `failed_retryable` records: how it is known that the work had no effect. */
  readonly proof: Proof | undefined
  /**
   * The last finished phase of the operation, or `started` if no phase has finished. `undefined` if
   * the record has no operation.
   */
  readonly recoveryPoint: string | undefined
  /** Set on `completed` records, but absent in lists. */
  readonly result: Uint8Array | undefined
  /** The code of the last failure, if the last attempt failed. */
  readonly errorCode: string | undefined
  /**
   * When the record is due: for the reconciler if it is `unknown`; for a worker if it is `pending`,
   * or released with a recovery point; for removal if it is `expired`.
   */
  readonly reconcileAtMs: number | undefined
  /** Number of reconciliations since the record became `unknown`. */
  readonly tries: number
  readonly createdAtMs: number
  readonly lastRunAtMs: number
  readonly completedAtMs: number | undefined
  readonly expiresAtMs: number
}
