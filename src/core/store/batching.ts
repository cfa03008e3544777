/** How the engine divides its requests into store calls. */
export interface StoreBatching {
  /**
   * Requests in one call, at most. Large batches save commits; small ones keep single calls fast.
   *
   * @default 64
   */
  readonly rowsMax?: number

  /**
   * Calls of one kind (claim, settle, renew) that run at the same time. More calls use more
   * connections; fewer make larger batches.
   *
   * @default 4
   */
  readonly flushesMax?: number

  /**
   * Transactions with work of the caller that run at the same time, for example the connections
   * that a pool can spare. Further transactions wait in the engine, where the tenants take turns.
   * Without a limit they wait in the store, in the order of their arrival.
   *
   * @default no limit
   */
  readonly transactionsMax?: number

  /**
   * Steps of operations without work of the caller (`PhaseStore.record`) that run at the same time.
   *
   * @default `transactionsMax`
   */
  readonly stepsMax?: number

  /**
   * The parts of the store that answer and fail independently.
   *
   * @default none: the whole store answers or fails
   */
  readonly lanes?: StoreLanes
}

/**
 * Parts of a store that answer and fail independently, such as the slots of a cluster. Each lane
 * has a queue, calls and a breaker. Requests for different lanes never share a call, so that a lane
 * that fails or does not answer delays no other. Calls for several lanes that are sent together
 * share one signal.
 */
export interface StoreLanes {
  /** Number of lanes, from 1 to 256. It bounds the calls that run at once, and the probes. */
  readonly count: number

  /**
   * Calls of one kind that run at the same time in each lane.
   *
   * @default 1. With `rowsMax: 1` and no value here, all lanes share the queue and the calls of the
   * store (`StoreBatching.flushesMax`), and only their failures are counted separately
   */
  readonly flushesMax?: number

  /**
   * The lane of a record, from 0. Returns `undefined` if the store has no lanes at present: such
   * requests have a separate queue with `StoreBatching.flushesMax` calls.
   */
  of(identity: string): number | undefined
}
