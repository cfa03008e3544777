import { describe, expect, it } from 'vitest'
import type { Store } from '../../src/core/store/store.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'
import { storeCases, type StoreNeed } from '../../src/testing/store-cases.ts'

export interface OpenStore {
  readonly store: Store
  /** Removes what `open` created. Runs after the store was closed. */
  readonly cleanUp?: () => Promise<void> | void
}

export interface StoreUnderTest {
  readonly name: string
  /** Opens a new, empty store. Runs once in each case. */
  readonly open: (clock: FakeClock) => Promise<OpenStore> | OpenStore
  /** Why the store lacks a method. Skips the cases that need the method. */
  readonly without?: Readonly<Partial<Record<StoreNeed, string>>>
}

const NEEDS: readonly StoreNeed[] = ['transaction', 'history', 'discard']

export function runStoreCases({ name, open, without = {} }: StoreUnderTest): void {
  const skipped = storeCases.filter(({ needs = [] }) =>
    [needs].flat().some((need) => need in without),
  )

  describe(`store: ${name}`, () => {
    for (const need of NEEDS) {
      const isPresent = without[need] === undefined
      const title = isPresent ? `has ${need}()` : `has no ${need}(), so its cases are skipped`
      it(title, async () => {
        await withStore(open, async ({ store }) => {
          expect(store[need] === undefined).toBe(need in without)
        })
      })
    }

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
