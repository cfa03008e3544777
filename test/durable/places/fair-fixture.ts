import { createEngine } from '../../../src/core/engine/engine.ts'
import type { EngineEvent } from '../../../src/core/events.ts'
import {
  createOutbox,
  defineOperation,
  operationPolicy,
  type Operation,
} from '../../../src/durable/index.ts'
import type { Effect } from '../../../src/durable/operations/operation-contract.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { simulatedStore } from '../simulated/store.ts'

/** An engine on a store in this process with a fake clock and many tenants. */
export function fairFixture() {
  const clock = new FakeClock()
  const store = simulatedStore<string>(clock)
  const events: EngineEvent[] = []
  const engine = createEngine({
    store,
    clock,
    sweepEveryMs: 0,
    reapEveryMs: 0,
    onEvent: (event) => events.push(event),
  })
  const outbox = createOutbox({ engine })
  let keys = 0
  const request = (tenant: string, name: string) => ({
    scope: { tenant, operation: name },
    key: `k-${keys++}`,
    fingerprint: 'f',
    policy: operationPolicy(engine),
  })
  return {
    clock,
    engine,
    store,
    events,
    ofKind: <Kind extends EngineEvent['kind']>(kind: Kind) =>
      events.filter((event) => event.kind === kind) as Extract<EngineEvent, { kind: Kind }>[],
    /** Accepts operations as requests of this tenant do. */
    accept: async (one: Operation<string>, tenant: string, count: number) => {
      for (let n = 0; n < count; n++) {
        await engine.run(request(tenant, one.name), async (context) => {
          await one.accept(context, tenant)
          return new Uint8Array(0)
        })
      }
    },
    /** Runs operations one after the other, as requests do. */
    run: async (one: Operation<string>, tenant: string) =>
      engine.run(request(tenant, one.name), one.work(tenant)),
    /** Adds messages, each in its own transaction. */
    add: async (topic: string, tenant: string | undefined, count: number) => {
      for (let n = 0; n < count; n++) {
        await store.transact(async (tx) => {
          await outbox.add(tx, topic, n, tenant === undefined ? {} : { tenant })
        })
      }
    },
  }
}

const DONE = { status: 200, body: 'done' }
const never = () => new Promise<never>(() => undefined)

/** An operation that records the tenants it ran for. */
export function quickOperation(name: string) {
  const ran: string[] = []
  const one = defineOperation<string>({
    name,
    run: async (_op, tenant) => {
      ran.push(tenant)
      return DONE
    },
  })
  return { one, ran }
}

/** An operation whose effect never answers and ignores its signal. */
export function hangingEffect(name: string, effect: Partial<Effect<string, string>> = {}) {
  const sent: string[] = []
  const ends: (() => void)[] = []
  const send = ({ request }: { readonly request: string }) => {
    sent.push(request)
    return new Promise<string>((resolve) => ends.push(() => resolve('late')))
  }
  const one = defineOperation<string, { charge: Effect<string, string> }>({
    name,
    effects: { charge: { send, ...effect } },
    run: async (op, tenant) => {
      await op.external('charge', tenant)
      return DONE
    },
  })
  return { one, sent, ends }
}

/** An operation that never ends and ignores its signal. */
export function hangingOperation(name: string) {
  const begun: string[] = []
  const one = defineOperation<string>({
    name,
    run: (_op, tenant) => {
      begun.push(tenant)
      return never()
    },
  })
  return { one, begun }
}
