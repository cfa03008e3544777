/**
 * The work of processes that pay in their own transaction and complete the key in it. They either
 * stop at a given point, after one line that says so, until they are killed; or they run until they
 * are killed and write one line for every key that they know to be recorded.
 */
import { writeSync } from 'node:fs'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { RunContext } from '../../../src/core/attempt/run-context.ts'
import type { Store } from '../../../src/core/store/store.ts'

export interface Client {
  readonly tx: unknown
  readonly query: (sql: string) => Promise<unknown>
}

const report = (line: string) => writeSync(1, `${line}\n`)

export async function workUntilKilled(
  store: Store,
  { tx, query }: Client,
  { point, first }: { readonly point: string; readonly first: string },
): Promise<never> {
  const engine = createEngine({ store, onLapse: 'rerun' })

  const reach = async (here: string): Promise<void> => {
    if (here !== point) return
    report(here)
    await new Promise(() => undefined)
  }
  const payFor = (key: string) => async (context: RunContext) => {
    await reach('claimed')
    await query('BEGIN')
    await reach('begun')
    await query(`INSERT INTO payment VALUES ('${key}')`)
    await reach('paid')
    const receipt = Buffer.from(`receipt of ${key}`)
    await context.completeIn(tx, receipt)
    await reach('completed')
    const committed = query('COMMIT')
    await reach('committing')
    await committed
    await reach('committed')
    return receipt
  }

  const scope = { tenant: 'acme', operation: 'pay' }
  for (let n = 0; ; n++) {
    const key = point === 'nowhere' ? `${first}-${n}` : first
    const outcome = await engine.run({ scope, key, fingerprint: 'f' }, payFor(key))
    await reach('told')
    if (outcome.kind !== 'ran') throw new Error(`expected the work to run, got ${outcome.kind}`)
    report(key)
  }
}
