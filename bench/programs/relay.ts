/** One relay on PostgreSQL, with handlers that do nothing. */
import { createEngine } from '../../src/core/engine/engine.ts'
import { createOutbox } from '../../src/durable/outbox/outbox.ts'
import type { MessageHandler } from '../../src/durable/outbox/relay-contract.ts'
import { createRelay } from '../../src/durable/outbox/relay.ts'
import { openDatabase, type OutboxDatabase } from '../../test/durable/outbox/relay-databases.ts'
import type { Figures } from '../report/results.ts'
import { quantile } from '../report/statistics.ts'
import type { Places, Program } from '../run/contract.ts'
import { expectEqual } from '../run/subject.ts'
import { addressOf } from '../subjects/stores.ts'

const ADDS_IN_ONE = 200
const ADDERS = 8
/** After this pause a relay is idle again. */
const PAUSE_MS = 20

export async function open({ places }: { readonly places: Places }): Promise<Program> {
  const database = await openDatabase('postgres', addressOf(places, 'postgres'))
  return {
    calls: {
      rate: ({ messages }: { messages: number }) => throughput(database, messages),
      latency: ({ messages }: { messages: number }) => latency(database, messages),
    },
    close: () => database.close(),
  }
}

async function throughput({ store, transact }: OutboxDatabase, messages: number): Promise<Figures> {
  const engine = createEngine({ store, sweepEveryMs: 0, reapEveryMs: 0 })
  const outbox = createOutbox({ engine })
  const addMany = () =>
    transact(async ({ tx }) => {
      for (let n = 0; n < ADDS_IN_ONE; n++) await outbox.add(tx, 'bench', { n, to: 'a@b.example' })
    })
  let added = 0
  while (added < messages) {
    const adders = Math.min(ADDERS, Math.ceil((messages - added) / ADDS_IN_ONE))
    await Promise.all(Array.from({ length: adders }, addMany))
    added += adders * ADDS_IN_ONE
  }
  let count = 0
  const stop = new AbortController()
  const handler = () => {
    if (++count === added) stop.abort()
  }
  const relay = createRelay({ engine, topics: { bench: handler } })
  const started = performance.now()
  // Resolves when the settlement of the last message is recorded.
  await relay.run(stop.signal)
  const seconds = (performance.now() - started) / 1000
  expectEqual('messages handled', count, added)
  await engine.close()
  return { rate: added / seconds }
}

async function latency({ store, transact }: OutboxDatabase, messages: number): Promise<Figures> {
  const engine = createEngine({ store, sweepEveryMs: 0, reapEveryMs: 0 })
  const outbox = createOutbox({ engine })
  const begun = new Map<string, () => void>()
  const handler: MessageHandler = ({ payload }) => begun.get(String(payload))?.()
  const stop = new AbortController()
  const running = createRelay({ engine, topics: { single: handler } }).run(stop.signal)
  const waits: number[] = []
  for (let n = 0; n < messages; n++) {
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS))
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
  await engine.close()
  return { p50: quantile(waits, 0.5), p99: quantile(waits, 0.99) }
}
