/** The targets of a run: ratios of medians of the same run, and a few absolute limits. */
import type { FigureName, FigureRef } from './results.ts'

export interface Target {
  readonly name: string
  readonly of: FigureRef
  /** Subtracted from `of` first, to get the added cost. */
  readonly less?: FigureRef
  /** The divisor. Absent for an absolute limit. */
  readonly against?: FigureRef
  readonly limit: { readonly atLeast: number } | { readonly atMost: number }
  /** The unit of an absolute limit. */
  readonly unit?: string
}

const rate = (line: string): FigureRef => ({ line, figure: 'rate' })
const figure = (line: string, name: FigureName): FigureRef => ({ line, figure: name })

const EXPRESS_FIRST = rate('http.express.postgres.first.64')
const EXPRESS_BARE = rate('http.express.bare.first.64')

/** Peers that keep keys in Redis and can be mounted in an Express route. */
const REDIS_PEERS = ['steadykey-redis', 'node-idempotency-redis', 'powertools-redis']

const MILLION = 1_000_000
const MANY = 10 * MILLION

const UPKEEP = [
  ['reap', 'Removing a batch of 100 expired records'],
  ['sweep', 'A sweep that finds 100 lapsed records'],
  ['sweep-idle', 'A sweep that finds nothing'],
] as const

/** A hot key must not be slower than many keys, and must not slow down another tenant. */
const HOT_KEYS = ['postgres', 'mariadb'].flatMap((store) =>
  [0, 10].flatMap((ms): Target[] => {
    const id = `network.${store}.${ms}`
    const where = `${store}, ${ms} ms away`
    return [
      {
        name: `Replays of one key against many keys, ${where}`,
        of: rate(`${id}.one`),
        against: rate(`${id}.many`),
        limit: { atLeast: 0.9 },
      },
      {
        name: `Retries of one key in progress against many keys, ${where}`,
        of: rate(`${id}.busyOne`),
        against: rate(`${id}.busyMany`),
        limit: { atLeast: 0.9 },
      },
      {
        name: `p99 of another tenant beside one key against many keys, ${where}`,
        of: figure(`${id}.besideOne`, 'p99'),
        against: figure(`${id}.besideMany`, 'p99'),
        limit: { atMost: 1.3 },
      },
    ]
  }),
)

export const TARGETS: readonly Target[] = [
  ...HOT_KEYS,
  {
    name: 'PostgreSQL, first requests through Express, against steadykey on PostgreSQL',
    of: EXPRESS_FIRST,
    against: rate('peers.express.steadykey-postgres.first.64'),
    limit: { atLeast: 2.5 },
  },
  ...REDIS_PEERS.map((peer): Target => {
    return {
      name: `PostgreSQL, first requests through Express, against ${peer}`,
      of: EXPRESS_FIRST,
      against: rate(`peers.express.${peer}.first.64`),
      limit: { atLeast: 0.95 },
    }
  }),
  {
    name: 'PostgreSQL, first requests, against the bare Express route',
    of: EXPRESS_FIRST,
    against: EXPRESS_BARE,
    limit: { atLeast: 0.7 },
  },
  {
    name: 'PostgreSQL, replays, against the bare Express route',
    of: rate('http.express.postgres.replay.64'),
    against: EXPRESS_BARE,
    limit: { atLeast: 0.9 },
  },
  {
    name: 'SQLite FULL, replays, against the bare Express route',
    of: rate('http.express.sqlite-full.replay.64'),
    against: EXPRESS_BARE,
    limit: { atLeast: 0.9 },
  },
  {
    name: 'SQLite FULL, first requests, against the bare Express route',
    of: rate('http.express.sqlite-full.first.64'),
    against: EXPRESS_BARE,
    limit: { atLeast: 0.75 },
  },
  {
    name: 'Engine on PostgreSQL, 64 in flight, against hand-written batched SQL',
    of: rate('engine.postgres.first.64'),
    against: rate('limits.batched-postgres.first.64'),
    limit: { atLeast: 0.85 },
  },
  {
    name: 'Engine on SQLite FULL, 64 in flight, against our Redis store',
    of: rate('engine.sqlite-full.first.64'),
    against: rate('engine.redis.first.64'),
    limit: { atLeast: 1 },
  },
  {
    name: 'One request at a time: what PostgreSQL adds to Express, against 2 bare round trips',
    of: figure('http.express.postgres.first.1', 'p50'),
    less: figure('http.express.bare.first.1', 'p50'),
    against: figure('limits.round-trips.writes.1', 'p50'),
    limit: { atMost: 1.3 },
  },
  {
    name: 'Cost of a first request at 10 million records against 10 thousand, PostgreSQL',
    // The inverse of the rates is the cost of a first request.
    of: rate('growth.first.10000.64'),
    against: rate(`growth.first.${MANY}.64`),
    limit: { atMost: 1.7 },
  },
  ...UPKEEP.map(([call, name]): Target => {
    return {
      name: `${name} at 10 million records`,
      of: figure(`growth.${call}.${MANY}`, 'p50'),
      limit: { atMost: 10 },
      unit: 'ms',
    }
  }),
  // Targets of earlier releases that still apply.
  {
    name: 'Engine on Redis, 64 in flight, against a bare SET NX and SET',
    of: rate('engine.redis.first.64'),
    against: rate('limits.bare-redis.first.64'),
    limit: { atLeast: 0.8 },
  },
  {
    name: 'p99 of claims while expired records are reaped, against while none are',
    of: figure(`growth.paced-reaping.${MANY}`, 'p99'),
    against: figure(`growth.paced.${MANY}`, 'p99'),
    limit: { atMost: 1.2 },
  },
  ...['encrypt', 'decrypt'].map((call): Target => {
    return {
      name: `CPU to ${call} 2 KB with aesKeyring`,
      of: figure(`choices.aes-keyring.${call}`, 'cpu'),
      limit: { atMost: 15 },
      unit: 'µs',
    }
  }),
  {
    name: 'Messages a second through one relay on PostgreSQL',
    of: rate('relay.postgres.rate'),
    limit: { atLeast: 5_000 },
    unit: 'a second',
  },
  {
    name: 'From adding a message to its handler, relay idle, PostgreSQL',
    of: figure('relay.postgres.latency', 'p50'),
    limit: { atMost: 20 },
    unit: 'ms',
  },
]
