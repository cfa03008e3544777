/** Every span of the simulated world, and why they fit together. */
export const TIMES = {
  leaseMs: 1_000,
  maxRunMs: 4_000,
  storeTimeoutMs: 200,
  settleTimeoutMs: 300,
  sweepEveryMs: 1_000,
  workerPollMs: 600,
  relayPollMs: 700,
  reconcilerPollMs: 900,
  /** A store call that arrives after its caller has given it up. */
  lateMs: 400,
  /** How long an effect is waited for, and a question about it. */
  answerMs: 700,
  handlerMs: 2_500,
  /** How long a call that ignores its signal may run on. */
  hangsOnMs: 400,
  /** The longest that anybody waits for an answer of the store: the reconciler. */
  storeGivesUpMs: 10_000,
  /** The longest pause of a relay after the store has failed. */
  relayPauseMs: 5_000,
  waitMs: 900,
  graceMs: 2_000,
  /** How long a charge of a provider takes that is slow. */
  slowMs: 380,
  /** A request reaches the provider no later than this, whatever became of its sender. */
  arrivesMs: 1_900,
  /** The wall clock may jump so far in all, in either direction. */
  jumpsMs: 3_000,
  /** Longer than a request may take to arrive, by a clock that has jumped. */
  provenAfterMs: 6_000,
  repeatableMs: 4_000,
  /**
   * Counted from the first request: the window in which it may be repeated, by a clock that has
   * jumped back, and a lease in which the last one is decided, sent, and arrives.
   */
  rememberedMs: 11_000,
} as const
