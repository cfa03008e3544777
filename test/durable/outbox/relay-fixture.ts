import { DatabaseSync } from 'node:sqlite'
import { onTestFinished } from 'vitest'
import type {
  HeldMessage,
  MessageView,
  OutboxStore,
} from '../../../src/core/store/durable-store.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { EngineEvent } from '../../../src/core/events.ts'
import { newToken } from '../../../src/core/record/identity.ts'
import type { Store } from '../../../src/core/store/store.ts'
import { createOutbox, type AddOptions } from '../../../src/durable/outbox/outbox.ts'
import type {
  MessageHandler,
  RelayMessage,
  RelayOptions,
} from '../../../src/durable/outbox/relay-contract.ts'
import { createRelay } from '../../../src/durable/outbox/relay.ts'
import { sqliteStore } from '../../../src/stores/sqlite/index.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { scratchFolder } from '../../stores/scratch-folder.ts'

export const TOPIC = 'receipt.send'

/** An outbox in a new SQLite file with a fake clock, and a relay for one topic. */
export function setup(change: (outbox: OutboxStore) => Partial<OutboxStore> = () => ({})) {
  const folder = scratchFolder()
  onTestFinished(folder.remove)
  const clock = new FakeClock()
  const store = sqliteStore({ path: folder.file('records.db'), clock })
  onTestFinished(() => store.close())
  const app = new DatabaseSync(folder.file('records.db'))
  onTestFinished(() => app.close())
  const events: EngineEvent[] = []
  const own = store.durable.outbox
  const engine = createEngine({
    store: withOutbox(store, { ...own, ...change(own) }),
    clock,
    sweepEveryMs: 0,
    reapEveryMs: 0,
    onEvent: (event) => events.push(event),
  })
  const outbox = createOutbox({ engine })

  /** Adds a message in a transaction of the application. */
  const add = (payload?: unknown, options: AddOptions & { topic?: string } = {}): string => {
    const { topic = TOPIC, ...more } = options
    app.exec('BEGIN')
    const { id } = outbox.add(app, topic, payload, more)
    app.exec('COMMIT')
    return id
  }
  const relay = (handler: MessageHandler, options: Partial<RelayOptions> = {}) => {
    const made = createRelay({
      engine,
      topics: { [TOPIC]: handler },
      random: () => 0.5,
      ...options,
    })
    onTestFinished(async () => {
      await made.close({ graceMs: 0 })
    })
    return made
  }
  const read = async (id: string): Promise<MessageView> => (await own.read(id))!
  /** Claims messages as another relay does. */
  const claim = (limit = 10, leaseMs = 30_000): Promise<HeldMessage[]> =>
    own.claim({ topics: [TOPIC], limit, leaseMs, token: newToken() })
  const eventsOf = (kind: EngineEvent['kind']) => events.filter((event) => event.kind === kind)
  return { clock, store, own, app, engine, outbox, events, eventsOf, add, relay, read, claim }
}

/** The same store with another outbox. */
export function withOutbox(store: Store, outbox: OutboxStore): Store {
  const { name, durable } = store
  return {
    name,
    claim: (requests) => store.claim(requests),
    settle: (settlements) => store.settle(settlements),
    renew: (renewals) => store.renew(renewals),
    resolve: (verdicts) => store.resolve(verdicts),
    sweep: (request) => store.sweep(request),
    reap: (request) => store.reap(request),
    read: (ref) => store.read(ref),
    list: (query) => store.list(query),
    durable: { ...durable!, outbox },
  }
}

/** A handler whose calls the test ends. */
export function held() {
  const calls: HeldCall[] = []
  const listeners = new Set<() => void>()
  const handler: MessageHandler = (message) => {
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    calls.push({ message, finish: resolve, fail: reject })
    for (const listener of listeners) listener()
    return promise
  }
  /** Resolves after the given number of calls. */
  const called = (count: number) =>
    new Promise<void>((resolve) => {
      const check = () => {
        if (calls.length < count) return
        listeners.delete(check)
        resolve()
      }
      listeners.add(check)
      check()
    })
  return { handler, calls, called }
}

export interface HeldCall {
  readonly message: RelayMessage
  readonly finish: () => void
  readonly fail: (error: Error) => void
}

/** Runs all pending callbacks without advancing the clock. */
export async function settled(): Promise<void> {
  for (let turn = 0; turn < 20; turn++) {
    await new Promise((resolve) => {
      setImmediate(resolve)
    })
  }
}
