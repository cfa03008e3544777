import { describe, it, onTestFinished } from 'vitest'
import { sqliteStore } from '../../src/stores/sqlite/index.ts'
import { scratchFolder } from '../stores/scratch-folder.ts'
import { adapterCases, FakeClock, type AdapterSubject } from '../../src/testing/index.ts'

/** Runs all cases on one framework. They test HTTP, so the store need not be durable. */
export function runAdapterCases(name: string, subject: AdapterSubject): void {
  describe(name, () => {
    for (const { name, needs, run } of adapterCases) {
      const reason = needs === undefined ? undefined : subject.without?.[needs]
      it.skipIf(reason !== undefined)(
        reason === undefined ? name : `${name} (${reason})`,
        async () => {
          const folder = scratchFolder()
          const clock = new FakeClock()
          const store = sqliteStore({ path: folder.file('keys.db'), synchronous: 'normal', clock })
          onTestFinished(async () => {
            await store.close()
            folder.remove()
          })
          await run({ subject, store, clock })
        },
      )
    }
  })
}
