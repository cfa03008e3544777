import { createEngine } from '../../../src/core/engine/engine.ts'
import type { EngineOptions } from '../../../src/core/engine/engine-contract.ts'
import type { EngineEvent } from '../../../src/core/events.ts'
import type { Work, RunContext } from '../../../src/core/attempt/run-context.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { bytes, KEY, SCOPE } from '../engine/engine-fixture.ts'
import { FaultyStore } from '../engine/faulty-store.ts'
import { JoinableStore } from './joinable-store.ts'

/** An engine on a faulty store that supports `completeIn`. */
export function setup(options: Partial<EngineOptions> = {}) {
  const clock = new FakeClock()
  const database = new JoinableStore(clock)
  const settleIn = database.settleIn.bind(database)
  const store = Object.assign(new FaultyStore(database, clock), { settleIn })
  const events: EngineEvent[] = []
  const start = (of: Partial<EngineOptions> = {}) =>
    createEngine({
      store,
      clock,
      sweepEveryMs: 0,
      reapEveryMs: 0,
      onEvent: (event) => events.push(event),
      ...options,
      ...of,
    })
  const engine = start()
  const run = (work: Work, key = KEY) => engine.run({ scope: SCOPE, key, fingerprint: 'f' }, work)
  const record = (key = KEY) => engine.read({ scope: SCOPE, key })
  const kinds = () => events.map(({ kind }) => kind)
  return { clock, database, store, engine, start, run, record, kinds }
}

export type Setup = ReturnType<typeof setup>

/** Work that begins a transaction, pays in it and completes its key in it. */
export const payIn =
  ({ database }: Pick<Setup, 'database'>, row: string) =>
  async (context: RunContext): Promise<Uint8Array> => {
    const tx = database.begin()
    tx.pay(row)
    await context.completeIn(tx, bytes(`receipt of ${row}`))
    tx.commit()
    return bytes(`receipt of ${row}`)
  }
