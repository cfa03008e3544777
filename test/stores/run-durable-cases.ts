import { describe, expect, it } from 'vitest'
import { durableCases, type DurableFixture } from '../../src/testing/durable-cases.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'

/** The fixture of a case without its clock. */
export type OpenDurableStore = Omit<DurableFixture, 'clock'>

export interface DurableStoreUnderTest {
  readonly name: string
  /**
   * Opens a new, empty store with a table of the caller. Runs once in each case, within the test,
   * so it can close and remove things with `onTestFinished`.
   */
  readonly open: (clock: FakeClock) => Promise<OpenDurableStore> | OpenDurableStore
  /** Why the store lacks a method. Skips the cases that need the method. */
  readonly without?: { readonly history?: string }
}

export function runDurableCases({ name, open, without = {} }: DurableStoreUnderTest): void {
  describe(`durable store: ${name}`, () => {
    const hasHistory = without.history === undefined
    it(hasHistory ? 'has history()' : 'has no history(), so its cases are skipped', async () => {
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
