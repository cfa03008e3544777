import { describe, expect, it } from 'vitest'
import { durableCases, type DurableFixture } from '../../src/testing/durable-cases.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'

/** What the cases need, but for the clock. */
export type OpenDurableStore = Omit<DurableFixture, 'clock'>

export interface DurableStoreUnderTest {
  readonly name: string
  /**
   * A fresh, empty store, and a table of the caller's beside it. Called once per case, within the
   * test: it may say with `onTestFinished` what is to be closed and removed.
   */
  readonly open: (clock: FakeClock) => Promise<OpenDurableStore> | OpenDurableStore
  /** Why the store lacks a method; the cases that need it are then the ones skipped. */
  readonly without?: { readonly history?: string }
}

export function runDurableCases({ name, open, without = {} }: DurableStoreUnderTest): void {
  describe(`durable store: ${name}`, () => {
    it(`${without.history === undefined ? 'has' : 'skips, for it has no'} history`, async () => {
      await withStore(open, async ({ store }) => {
        expect(store.history === undefined).toBe('history' in without)
      })
    })

    for (const durableCase of durableCases) {
      const title: string = durableCase.name
      const isSkipped = durableCase.needs !== undefined && durableCase.needs in without
      it.skipIf(isSkipped)(title, () => withStore(open, (fixture) => durableCase.run(fixture)))
    }
  })
}

async function withStore(
  open: DurableStoreUnderTest['open'],
  run: (fixture: DurableFixture) => Promise<void>,
): Promise<void> {
  const clock = new FakeClock()
  const opened = await open(clock)
  await run({ ...opened, clock })
  expect(clock.pendingTimers, 'timers left behind').toBe(0)
}
