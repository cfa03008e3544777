/** Every duration of the simulated world, and why they fit together. */
export const TIMES = {
  leaseMs: 1_000,
  runTimeoutMs: 4_000,
  storeTimeoutMs: 200,
  settleTimeoutMs: 300,
  sweepEveryMs: 1_000,
  workerPollMs: 600,
  relayPollMs: 700,
  reconcilerPollMs: 900,
  /** Delay of a store call that arrives after its caller has timed out. */
  lateMs: 400,
  /** Timeout of an effect, and of a query about it. */
  answerMs: 700,
  handlerMs: 2_500,
  /** How long a call that ignores its signal may continue. */
  hangsOnMs: 400,
  /** The longest store timeout in the package: that of the reconciler. */
  storeGivesUpMs: 10_000,
  /** The longest pause of a relay after the store has failed. */
  relayPauseMs: 5_000,
  waitMs: 900,
  graceMs: 2_000,
  /** Duration of a slow charge. */
  slowMs: 380,
  /** The longest time until a request reaches the provider, even if its sender has crashed. */
  arrivesMs: 1_900,
  /** The largest sum of wall clock jumps, in either direction. */
  jumpsMs: 3_000,
  /** Longer than a request may take to arrive, measured by a clock that has jumped. */
  notFoundIsFinalAfterMs: 6_000,
  repeatableMs: 4_000,
  /**
   * Counted from the first request: the window in which it may be repeated, by a clock that has
   * jumped back, plus a lease in which the last repeat is decided, sent and received.
   */
  rememberedMs: 11_000,
} as const
