/** The payments whose commits and round trips are counted, for any store. */
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { Engine } from '../../../src/core/engine/engine-contract.ts'
import type { DurableStore } from '../../../src/core/store/durable-store.ts'
import type { Store } from '../../../src/core/store/store.ts'
import {
  createOutbox,
  defineOperation,
  operationPolicy,
  type EffectCall,
  type Operation,
} from '../../../src/durable/index.ts'

export type CountedStore = Store & { readonly durable: DurableStore }

/** Writes one row of the application in an open transaction. */
export type WriteRow = (tx: unknown, row: string) => unknown

/** An engine without background tasks, so that only the calls of the test are counted. */
export function quietEngine(store: Store): Engine {
  return createEngine({ store, sweepEveryMs: 0, reapEveryMs: 0 })
}

/** Three phases: record, charge, and book with a receipt. */
export function threePhases(engine: Engine, write: WriteRow): Operation<undefined> {
  const outbox = createOutbox({ engine })
  return defineOperation({
    name: 'three',
    effects: { charge: { send: async ({ request }: EffectCall<{ amount: number }>) => request } },
    async run(op) {
      await op.transaction('record', (tx) => whenWritten(write(tx, 'recorded'), () => 1))
      await op.external('charge', { amount: 1 })
      return op.finish('book', (tx) =>
        whenWritten(write(tx, 'booked'), () =>
          whenWritten(addReceipt(tx), () => ({ status: 201, body: {} })),
        ),
      )
    },
  })

  function addReceipt(tx: unknown): unknown {
    return isSynchronous(engine) ? outbox.add(tx, 'receipt', {}).id : outbox.add(tx, 'receipt', {})
  }
}

/** One phase, which is the first and the last. */
export function onePhase(write: WriteRow): Operation<undefined> {
  return defineOperation({
    name: 'one',
    run: (op) =>
      op.finish('book', (tx) =>
        whenWritten(write(tx, 'booked'), () => ({ status: 201, body: {} })),
      ),
  })
}

export async function runCounted(
  engine: Engine,
  one: Operation<undefined>,
  key = 'k',
): Promise<string> {
  const scope = { tenant: 't', operation: one.name }
  const request = { scope, key, fingerprint: 'f', policy: operationPolicy(engine) }
  return (await engine.run(request, one.work(undefined))).kind
}

function isSynchronous({ store }: Engine): boolean {
  return store.name === 'sqlite'
}

/** On SQLite a whole transaction is synchronous. */
function whenWritten<Result>(
  written: unknown,
  then: () => Result | Promise<Result>,
): Result | Promise<Result> {
  return written instanceof Promise ? written.then(then) : then()
}
