/** The simulated store passes the cases of all stores: it is no mock. */
import { it } from 'vitest'
import type { FakeClock } from '../../../src/testing/fake-clock.ts'
import { playDurableHistories } from '../../stores/play-durable-histories.ts'
import { runDurableCases } from '../../stores/run-durable-cases.ts'
import { runStoreCases } from '../../stores/run-store-cases.ts'
import { SimulatedTransaction } from './outbox.ts'
import { simulatedStore } from './store.ts'

const history = 'the simulated store keeps no history'
const discard = 'a discard is an act of `durable`'

runStoreCases({
  name: 'simulated',
  open: (clock) => ({ store: simulatedStore(clock) }),
  without: { history, discard },
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

it('behaves like a simple model for random histories', { timeout: 120_000 }, () =>
  playDurableHistories({
    histories: 6,
    steps: 250,
    open: (clock) => {
      const store = simulatedStore<string>(clock)
      return { store, transact: (work) => store.transact(work) }
    },
  }),
)
