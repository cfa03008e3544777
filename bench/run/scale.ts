/** How much of everything a run measures. */
export interface Scale {
  readonly rounds: number
  /** Of each line in each round. */
  readonly roundMs: number
  /** Before each measurement, and not counted. */
  readonly warmMs: number
  /** Before the first of a server's lines in each round; and the same of an engine. */
  readonly serverWakeMs: number
  readonly engineWakeMs: number
  /** Requests under way at once, on the engine. */
  readonly inFlight: readonly number[]
  /** The sizes of the tables, the smallest first. */
  readonly tableRows: readonly number[]
  /** Of the largest table, how many have expired: they are what is reaped. */
  readonly expiredRows: number
  /** How many requests are held at once to see what memory they take. */
  readonly heldRequests: number
  /** Through the relay in each round. */
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

/** A rough answer in two minutes: for a first look, not for any claim. */
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
