import { describe, expect, it } from 'vitest'
import { durableCases, type DurableFixture } from '../../src/testing/durable-cases.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'

/** What the cases need, but for the clock. */
export interface OpenDurableStore extends Omit<DurableFixture, 'clock'> {
  /** Closes the store, and removes what `open` made. */
  readonly cleanUp: () => Promise<void> | void
}

export interface DurableStoreUnderTest {
  readonly name: string
  /** A fresh, empty store, and a table of the caller's beside it. Called once per case. */
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
  const { cleanUp, ...opened } = await open(clock)
  try {
    await run({ ...opened, clock })
    expect(clock.pendingTimers, 'timers left behind').toBe(0)
  } finally {
    await cleanUp()
  }
}
