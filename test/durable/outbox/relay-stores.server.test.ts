import { afterAll, beforeAll, describe, expect, it, onTestFinished, vi } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { EngineEvent } from '../../../src/core/events.ts'
import { createOutbox } from '../../../src/durable/outbox/outbox.ts'
import type { MessageHandler, RelayOptions } from '../../../src/durable/outbox/relay-contract.ts'
import { createRelay } from '../../../src/durable/outbox/relay.ts'
import { startMariadb, type MariadbServer } from '../../servers/mariadb.ts'
import { startPostgres, type PostgresServer } from '../../servers/postgres.ts'
import { scratchFolder } from '../../stores/scratch-folder.ts'
import { DATABASES, openDatabase, type DatabaseKind } from './relay-databases.ts'

let postgres: PostgresServer
let mariadb: MariadbServer
beforeAll(async () => {
  postgres = await startPostgres()
  mariadb = await startMariadb()
}, 120_000)
afterAll(async () => {
  await postgres.close()
  await mariadb.close()
})

/** No test waits for it, so a message that only a poll would find is not found. */
const NEVER_MS = 30_000

vi.setConfig({ testTimeout: 20_000 })

function locate(kind: DatabaseKind): Promise<string> {
  if (kind === 'postgres') return postgres.database()
  if (kind === 'mariadb') return mariadb.database()
  const folder = scratchFolder()
  onTestFinished(folder.remove)
  return Promise.resolve(folder.file('records.db'))
}

async function open(kind: DatabaseKind, location: string) {
  const { store, transact, close } = await openDatabase(kind, location)
  onTestFinished(close)
  const events: EngineEvent[] = []
  const engine = createEngine({
    store,
    sweepEveryMs: 0,
    reapEveryMs: 0,
    onEvent: (event) => events.push(event),
  })
  const outbox = createOutbox({ engine })
  const add = async (payload: unknown, partition?: string): Promise<string> => {
    let id = ''
    await transact(async ({ tx }) => {
      id = await outbox.add(tx, 't', payload, partition === undefined ? {} : { partition })
    })
    return id
  }
  const relay = (handler: MessageHandler, options: Partial<RelayOptions> = {}) => {
    const made = createRelay({
      engine,
      topics: { t: handler },
      pollMs: NEVER_MS,
      backoff: { firstMs: 60_000 },
      random: () => 0.9,
      ...options,
    })
    onTestFinished(async () => {
      await made.close()
    })
    return made
  }
  return { events, add, relay, transact, outbox, store: store.durable!.outbox }
}

/** A handler and the messages it received, in order. */
function inbox() {
  const given: unknown[] = []
  let told: () => void = () => undefined
  const handler: MessageHandler = ({ payload }) => {
    given.push(payload)
    told()
  }
  const next = async (): Promise<unknown> => {
    while (given.length === 0) {
      await new Promise<void>((resolve) => {
        told = resolve
      })
    }
    return given.shift()
  }
  return { handler, next }
}

describe.each(DATABASES)('on %s', (kind) => {
  it('relays a message of the same process without waiting for the next poll', async () => {
    const { add, relay } = await open(kind, await locate(kind))
    const { handler, next } = inbox()
    const running = relay(handler)
    const ended = running.run()
    for (let n = 0; n < 10; n++) {
      await add(n)
      expect(await next()).toBe(n)
    }
    await running.close()
    await ended
  })

  it('records a relayed, a retried, a dead and a noted message in the store', async () => {
    const { add, relay, store, events } = await open(kind, await locate(kind))
    const fine = await add({ fine: true })
    const poison = await add({ poison: true }, 'lane')
    const behind = await add({ behind: true }, 'lane')
    const bytes = await add(new Uint8Array([0, 255]))
    const handler: MessageHandler = async ({ payload, note }) => {
      if (payload instanceof Uint8Array) {
        await note('noted')
        throw new Error('later, with \0 and \uD800')
      }
      if ('poison' in (payload as object)) return { kind: 'dead_letter', error: 'never' }
      return { providerId: 'p-1' }
    }
    const made = relay(handler)
    expect(await made.runOnce()).toEqual({ relayed: 1, retried: 1, dead: 1, lost: 0 })
    expect((await made.runOnce()).relayed).toBe(0)
    expect(await store.read(fine)).toMatchObject({ state: 'done', providerId: 'p-1' })
    expect(await store.read(poison)).toMatchObject({ state: 'dead', errors: [{ error: 'never' }] })
    expect(await store.read(behind)).toMatchObject({ state: 'ready', attempt: 0 })
    expect(await store.read(bytes)).toMatchObject({
      state: 'ready',
      attempt: 1,
      providerId: 'noted',
      errors: [{ attempt: 1, error: 'Error: later, with \uFFFD and \uFFFD' }],
    })
    expect(events.filter(({ kind: event }) => event === 'store_error')).toEqual([])
  })

  it('relays no message of a transaction that was rolled back', async () => {
    const { transact, outbox, relay, store } = await open(kind, await locate(kind))
    let id = ''
    const failing = transact(async ({ tx }) => {
      id = await outbox.add(tx, 't', 'never', { partition: 'lane' })
      throw new Error('rolled back')
    })
    await expect(failing).rejects.toThrow('rolled back')
    expect((await relay(() => undefined).runOnce()).relayed).toBe(0)
    expect(await store.read(id)).toBe(undefined)
  })
})

it('gets notified of commits of other processes on PostgreSQL', async () => {
  const location = await locate('postgres')
  const here = await open('postgres', location)
  const there = await open('postgres', location)
  const { handler, next } = inbox()
  const running = here.relay(handler)
  const ended = running.run()
  // The relay polls until it listens, and gets notifications after that.
  await here.add('here')
  expect(await next()).toBe('here')
  for (let n = 0; n < 10; n++) {
    await there.add(n)
    expect(await next()).toBe(n)
  }
  await running.close()
  await ended
})
