/** A node that dies in its handler, and leaves its key held. */
import type { Store } from '../../src/core/store/store.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'
import { gate } from '../adapters/run-express.ts'
import { openShop } from './shop.ts'

/** The node's clock does not move, so it renews no lease: for other nodes it is dead. */
export async function leaveStuck(
  key: string,
  onLapse: 'unknown' | 'rerun',
  openStore: (clock: FakeClock) => Store,
): Promise<void> {
  const clock = new FakeClock()
  const entered = gate()
  const dead = await openShop({
    store: openStore(clock),
    engine: { clock },
    guard: { onLapse },
    handler: () => entered.open(),
  })
  // The client sees an error when the connection is cut, at the end of the test.
  dead.pay({ key }).catch(() => undefined)
  await entered.passed
}
