/** Retries of one key against retries of many, and their effect on another tenant. */
import { randomUUID } from 'node:crypto'
import { createEngine } from '../../src/core/engine/engine.ts'
import type { Engine } from '../../src/core/engine/engine-contract.ts'
import type { RunOutcome } from '../../src/core/attempt/run-outcome.ts'
import type { Work } from '../../src/core/attempt/run-context.ts'
import type { Figures } from '../report/results.ts'
import type { Load, Places, Program } from '../run/contract.ts'
import { callFor, measure } from '../run/measure.ts'
import { FINGERPRINT, newKeys, oneOf, REPLY_BYTES, SCOPE } from '../run/work.ts'
import { openStore, type StoreName } from '../subjects/stores.ts'

export interface NetworkConfig {
  readonly store: StoreName
  readonly places: Places
}

const OTHER_TENANT = { ...SCOPE, tenant: 'other' } as const

export async function open({ store: name, places }: NetworkConfig): Promise<Program> {
  const { store, close } = await openStore(name, places)
  const engine = createEngine({ store })
  const keys = newKeys()
  for (const key of keys) await expectKind(engine.run(requestFor(key), done), 'ran')
  const held = await hold(engine)
  const many = () => expectKind(engine.run(requestFor(oneOf(keys)), never), 'replayed')
  const one = () => expectKind(engine.run(requestFor(keys[0]!), never), 'replayed')
  const busy = (key: string) => expectKind(engine.run(requestFor(key), never), 'in_progress')
  return {
    calls: {
      many: (load: Load) => measure(many, load),
      one: (load: Load) => measure(one, load),
      busyMany: (load: Load) => measure(() => busy(oneOf(held.keys)), load),
      busyOne: (load: Load) => measure(() => busy(held.keys[0]!), load),
      besideMany: (load: Load) => beside(engine, many, load),
      besideOne: (load: Load) => beside(engine, one, load),
    },
    close: async () => {
      held.release()
      await engine.close({ graceMs: 5_000 })
      await close()
    },
  }
}

/** Measures first requests of another tenant, one at a time, during this load. */
async function beside(
  engine: Engine,
  retry: () => Promise<unknown>,
  { inFlight, ms, warmMs }: Load,
): Promise<Figures> {
  // Slightly longer than the measurement, so that the load covers all of it.
  const load = callFor(retry, inFlight, ms + 2 * warmMs)
  const first = () =>
    expectKind(engine.run({ ...requestFor(randomUUID()), scope: OTHER_TENANT }, done), 'ran')
  const figures = await measure(first, { inFlight: 1, ms, warmMs })
  await load
  return figures
}

/** Keys whose work runs until it is released. */
async function hold(engine: Engine) {
  const { promise, resolve } = Promise.withResolvers<Uint8Array>()
  const keys = newKeys()
  let entered = 0
  const running = keys.map((key) =>
    engine.run(requestFor(key), () => {
      entered++
      return promise
    }),
  )
  while (entered < keys.length) await new Promise((again) => setImmediate(again))
  return {
    keys,
    release: () => {
      resolve(REPLY_BYTES)
      void Promise.allSettled(running)
    },
  }
}

const requestFor = (key: string) => ({ scope: SCOPE, key, fingerprint: FINGERPRINT })

const done: Work = () => REPLY_BYTES

const never: Work = () => {
  throw new Error('the work ran again')
}

async function expectKind(outcome: Promise<RunOutcome>, kind: RunOutcome['kind']): Promise<void> {
  const got = await outcome
  if (got.kind !== kind) throw new Error(`expected ${kind}, got ${got.kind}`)
}
