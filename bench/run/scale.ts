/** The amount of each measurement in a run. */
export interface Scale {
  readonly rounds: number
  /** Duration of each line in each round. */
  readonly roundMs: number
  /** Warm-up before each measurement, not counted. */
  readonly warmMs: number
  /** Load before the first line of a server in each round, and of an engine. */
  readonly serverWakeMs: number
  readonly engineWakeMs: number
  /** Concurrent requests on the engine. */
  readonly inFlight: readonly number[]
  /** The sizes of the tables, the smallest first. */
  readonly tableRows: readonly number[]
  /** The number of expired records in the largest table, which are reaped. */
  readonly expiredRows: number
  /** The number of requests that are held at once to measure their memory. */
  readonly heldRequests: number
  /** Messages through the relay in each round. */
  readonly messages: number
  readonly singleMessages: number
}

export const FULL: Scale = {
  rounds: 7,
  roundMs: 1_000,
  warmMs: 250,
  serverWakeMs: 3_500,
  engineWakeMs: 1_000,
  inFlight: [1, 8, 64, 256],
  tableRows: [10_000, 1_000_000, 10_000_000],
  expiredRows: 400_000,
  heldRequests: 2_000,
  messages: 8_000,
  singleMessages: 40,
}

/** A rough result in two minutes. Do not publish its figures. */
export const QUICK: Scale = {
  rounds: 2,
  roundMs: 60,
  warmMs: 20,
  serverWakeMs: 0,
  engineWakeMs: 0,
  inFlight: [64],
  tableRows: [10_000, 50_000],
  expiredRows: 20_000,
  heldRequests: 500,
  messages: 1_000,
  singleMessages: 5,
}
