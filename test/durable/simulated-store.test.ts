/** The store of the simulation keeps the promises that all stores keep: it is no mock. */
import { it } from 'vitest'
import type { FakeClock } from '../../src/testing/fake-clock.ts'
import { playDurableHistories } from '../stores/play-durable-histories.ts'
import { runDurableCases } from '../stores/run-durable-cases.ts'
import { runStoreCases } from '../stores/run-store-cases.ts'
import { SimulatedTransaction } from './simulated-outbox.ts'
import { simulatedStore } from './simulated-store.ts'

const history = 'nobody looks into it here'

runStoreCases({
  name: 'simulated',
  open: (clock) => ({ store: simulatedStore(clock) }),
  without: { history },
})

runDurableCases({
  name: 'simulated',
  open: (clock: FakeClock) => {
    const store = simulatedStore<string>(clock)
    return {
      store,
      transact: (work) => store.transact(work),
      note: (tx, text) => store.write(tx, text),
      notes: async () => [...store.rows],
      commitInside: (tx) => SimulatedTransaction.of(tx).end(),
      cleanUp: () => undefined,
    }
  },
  without: { history },
})

it('does what a simple model of it does, whatever comes', { timeout: 120_000 }, () =>
  playDurableHistories({
    histories: 6,
    steps: 250,
    open: (clock) => {
      const store = simulatedStore<string>(clock)
      return { store, transact: (work) => store.transact(work) }
    },
  }),
)
