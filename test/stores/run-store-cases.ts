import { describe, expect, it } from 'vitest'
import type { Store } from '../../src/core/store.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'
import { storeCases } from '../../src/testing/store-cases.ts'

export interface OpenStore {
  readonly store: Store
  /** Removes what `open` made, after the store was closed. */
  readonly cleanUp?: () => Promise<void> | void
}

export interface StoreUnderTest {
  readonly name: string
  /** A fresh, empty store. Called once per case. */
  readonly open: (clock: FakeClock) => Promise<OpenStore> | OpenStore
  /** Why the store has no transactions; the cases that need them are then the ones skipped. */
  readonly withoutTransactions?: string
}

const TRANSACTION_CASES = storeCases.filter((storeCase) => storeCase.needs === 'transaction')

export function runStoreCases({ name, open, withoutTransactions }: StoreUnderTest): void {
  const skipped = withoutTransactions === undefined ? [] : TRANSACTION_CASES

  describe(`store: ${name}`, () => {
    it(`skips ${skipped.length} cases, because: ${withoutTransactions ?? 'none'}`, async () => {
      await withStore(open, async ({ store }) => {
        const unable = store.transaction === undefined ? TRANSACTION_CASES : []
        expect(skipped.map((one) => one.name)).toEqual(unable.map((one) => one.name))
      })
    })

    for (const storeCase of storeCases) {
      const title: string = storeCase.name
      it.skipIf(skipped.includes(storeCase))(title, async () => {
        await withStore(open, (fixture) => storeCase.run(fixture))
      })
    }
  })
}

async function withStore(
  open: StoreUnderTest['open'],
  run: (fixture: { store: Store; clock: FakeClock }) => Promise<void>,
): Promise<void> {
  const clock = new FakeClock()
  const { store, cleanUp } = await open(clock)
  try {
    await run({ store, clock })
    expect(clock.pendingTimers, 'timers left behind').toBe(0)
  } finally {
    try {
      await store.close?.()
    } finally {
      await cleanUp?.()
    }
  }
}
