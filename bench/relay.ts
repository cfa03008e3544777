/**
 * How fast one relay is, on a PostgreSQL that this script starts and ends itself: messages a second
 * with handlers that do nothing, and how long an idle relay takes from `add` to the handler.
 *
 *   npm run bench:relay              about a minute
 *   npm run bench:relay -- sqlite    the same on a file, or on mariadb: only to be known
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createEngine } from '../src/core/engine.ts'
import { createOutbox } from '../src/durable/outbox.ts'
import { createRelay } from '../src/durable/relay.ts'
import type { MessageHandler } from '../src/durable/relay-contract.ts'
import {
  openDatabase,
  type DatabaseKind,
  type OutboxDatabase,
} from '../test/durable/relay-databases.ts'
import { startMariadb } from '../test/servers/mariadb.ts'
import { startPostgres } from '../test/servers/postgres.ts'
import { median } from './contest.ts'

const ROUNDS = 5
const MESSAGES = 20_000
const ADDS_IN_ONE = 200
const ADDERS = 8
const SINGLE_ADDS = 200
const TARGET_PER_SECOND = 5_000
const TARGET_P50_MS = 20

async function main(): Promise<void> {
  const kind = (process.argv[2] ?? 'postgres') as DatabaseKind
  const { location, end } = await locate(kind)
  const database = await openDatabase(kind, location)
  const missed: string[] = []
  try {
    console.log(`${kind}: ${MESSAGES} messages, handlers that do nothing, one process`)
    const speeds: number[] = []
    for (let round = 1; round <= ROUNDS; round++) {
      speeds.push(await throughput(database))
      console.log(`  round ${round}/${ROUNDS}: ${Math.round(speeds.at(-1)!)} messages a second`)
    }
    const isHeldTo = kind === 'postgres'
    const speed = median(speeds)
    if (isHeldTo) judge(missed, 'messages a second', speed, speed >= TARGET_PER_SECOND)
    console.log(`${kind}: from add to the handler, relay idle, ${SINGLE_ADDS} messages`)
    const waits = await latency(database)
    const at = (part: number) => waits[Math.floor(waits.length * part)]!.toFixed(1)
    console.log(`  p50 ${at(0.5)} ms, p90 ${at(0.9)} ms, p99 ${at(0.99)} ms`)
    if (isHeldTo) judge(missed, 'ms (p50)', median(waits), median(waits) < TARGET_P50_MS)
  } finally {
    await database.close()
    await end()
  }
  process.exitCode = missed.length === 0 ? 0 : 1
}

function judge(missed: string[], what: string, value: number, isReached: boolean): void {
  const target = what.startsWith('ms') ? `under ${TARGET_P50_MS}` : `at least ${TARGET_PER_SECOND}`
  console.log(
    `  ${value.toFixed(1)} ${what}, target ${target}: ${isReached ? 'reached' : 'MISSED'}`,
  )
  if (!isReached) missed.push(what)
}

async function throughput({ store, transact }: OutboxDatabase): Promise<number> {
  const engine = createEngine({ store, sweepEveryMs: 0, reapEveryMs: 0 })
  const outbox = createOutbox({ engine })
  const addMany = () =>
    transact(async ({ tx }) => {
      for (let n = 0; n < ADDS_IN_ONE; n++)
        await outbox.add(tx, 'bench', { n, to: 'a@example.com' })
    })
  for (let added = 0; added < MESSAGES; added += ADDERS * ADDS_IN_ONE) {
    const left = Math.min(ADDERS, Math.ceil((MESSAGES - added) / ADDS_IN_ONE))
    await Promise.all(Array.from({ length: left }, addMany))
  }
  let count = 0
  const stop = new AbortController()
  const relay = createRelay({
    engine,
    topics: {
      bench: () => {
        if (++count === MESSAGES) stop.abort()
      },
    },
  })
  const started = performance.now()
  // Resolves when the end of the last one is on record.
  await relay.run(stop.signal)
  return (MESSAGES * 1000) / (performance.now() - started)
}

async function latency({ store, transact }: OutboxDatabase): Promise<number[]> {
  const engine = createEngine({ store, sweepEveryMs: 0, reapEveryMs: 0 })
  const outbox = createOutbox({ engine })
  const begun = new Map<string, () => void>()
  const handler: MessageHandler = ({ payload }) => begun.get(String(payload))?.()
  const stop = new AbortController()
  const running = createRelay({ engine, topics: { single: handler } }).run(stop.signal)
  const waits: number[] = []
  for (let n = 0; n < SINGLE_ADDS; n++) {
    await new Promise((resolve) => setTimeout(resolve, 20))
    const { promise, resolve } = Promise.withResolvers<void>()
    begun.set(`${n}`, resolve)
    let added = 0
    await transact(async ({ tx }) => {
      added = performance.now()
      await outbox.add(tx, 'single', `${n}`)
    })
    await promise
    waits.push(performance.now() - added)
  }
  stop.abort()
  await running
  return waits.toSorted((one, other) => one - other)
}

async function locate(kind: DatabaseKind) {
  if (kind === 'sqlite') {
    const folder = mkdtempSync(join(tmpdir(), 'oncekey-bench-'))
    const end = () => Promise.resolve(rmSync(folder, { recursive: true, force: true }))
    return { location: join(folder, 'records.db'), end }
  }
  const server = await (kind === 'postgres' ? startPostgres : startMariadb)({ private: true })
  return { location: await server.database(), end: () => server.close() }
}

await main()
