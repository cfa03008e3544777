/** A node that dies in its handler, and leaves its key behind. */
import type { Store } from '../../src/core/store.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'
import { gate } from '../adapters/run-express.ts'
import { openShop } from './shop.ts'

/** Time stands still for it, so it renews nothing and says nothing more: for others it is dead. */
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
  // Its client hears of it when the connection is cut, at the end of the test.
  dead.pay({ key }).catch(() => undefined)
  await entered.passed
}
