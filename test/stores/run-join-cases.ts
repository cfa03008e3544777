import { describe, expect, it } from 'vitest'
import { createEngine } from '../../src/core/engine/engine.ts'
import type { EngineOptions } from '../../src/core/engine/engine-contract.ts'
import type { RunContext } from '../../src/core/attempt/run-context.ts'
import type { RunOutcome } from '../../src/core/attempt/run-outcome.ts'
import type { Store } from '../../src/core/store/store.ts'
import { bytes, hold, RETENTION_MS, viewOf } from '../../src/testing/store-cases/store-case.ts'
import type { OpenTransaction, Tool } from './caller-transaction/join-tools.ts'

export interface JoinDatabase {
  readonly open: () => Promise<Store>
  /** Returns the keys in the table of payments. */
  readonly paid: () => Promise<unknown[]>
  /** Makes every lease lapse. */
  readonly lapse: () => Promise<unknown>
}

const SCOPE = { tenant: 'acme', operation: 'pay' }
const REQUEST = { scope: SCOPE, key: 'k', fingerprint: 'f' }

/** Decodes a result: some stores return a `Buffer`, others a plain `Uint8Array`. */
export const textOf = (result: Uint8Array | undefined) => new TextDecoder().decode(result)

/** The kind and the result of an outcome. */
export const told = (outcome: RunOutcome) => [
  outcome.kind,
  'result' in outcome ? textOf(outcome.result) : undefined,
]

/** Inserts a payment, and completes the key in the same transaction. */
const payIn =
  (key = 'paid') =>
  (context: RunContext) =>
  async ({ tx, pay }: OpenTransaction): Promise<Uint8Array> => {
    await pay(key)
    await context.completeIn(tx, bytes(`receipt of ${key}`))
    return bytes(`receipt of ${key}`)
  }

/** Runs the cases that hold for the transactions of every tool. */
export function runJoinCases<Database extends JoinDatabase>(
  tools: Readonly<Record<string, (database: Database) => Tool>>,
  openDatabase: () => Promise<Database>,
): void {
  async function setup(
    openTool: (database: Database) => Tool,
    options: Partial<EngineOptions> = {},
  ) {
    const database = await openDatabase()
    const store = await database.open()
    const engine = createEngine({ store, sweepEveryMs: 0, reapEveryMs: 0, ...options })
    const record = () => engine.read({ scope: SCOPE, key: 'k' })
    const { paid, lapse } = database
    return { store, engine, record, paid, lapse, tool: openTool(database) }
  }

  describe.each(Object.entries(tools))('a transaction of %s', (_name, openTool) => {
    it('commits the key with the rows of the caller', async () => {
      const { engine, paid, tool } = await setup(openTool)
      const run = () => engine.run(REQUEST, (context) => tool.transact(payIn()(context)))
      expect(told(await run())).toEqual(['ran', 'receipt of paid'])
      expect(told(await run())).toEqual(['replayed', 'receipt of paid'])
      expect(await paid()).toEqual(['paid'])
    })

    it('leaves neither rows nor a reply after a rollback', async () => {
      const { engine, paid, record, tool } = await setup(openTool)
      const declined = new Error('declined')
      const running = engine.run(REQUEST, (context) =>
        tool.transact(async (open) => {
          await payIn()(context)(open)
          throw declined
        }),
      )
      await expect(running).rejects.toBe(declined)
      expect(await paid()).toEqual([])
      expect(await record()).toMatchObject({ state: 'failed_retryable', proof: 'declared' })
      const again = engine.run(REQUEST, (context) => tool.transact(payIn('again')(context)))
      expect(await again).toMatchObject({ kind: 'ran' })
      expect(await paid()).toEqual(['again'])
    })

    it('rolls back when another holder has taken over the key', async () => {
      const { engine, lapse, paid, record, tool } = await setup(openTool, { onLapse: 'rerun' })
      const running = engine.run(REQUEST, (context) =>
        tool.transact(async (open) => {
          await open.pay('stale')
          await lapse()
          const other = engine.run(REQUEST, () => bytes('from the other'))
          expect(await other).toMatchObject({ kind: 'ran' })
          await context.completeIn(open.tx, bytes('stale'))
          return bytes('stale')
        }),
      )
      await expect(running).rejects.toMatchObject({ code: 'LEASE_LOST' })
      expect(await paid()).toEqual([])
      const view = await record()
      expect([view?.attempt, textOf(view?.result)]).toEqual([2, 'from the other'])
    })

    it('rejects the pool of the tool instead of its transaction', async () => {
      const { store, tool } = await setup(openTool)
      const lease = await hold(store)
      const completion = { result: bytes('done'), retentionMs: RETENTION_MS }
      const refused = store.settleIn!(tool.mistake, lease, completion)
      await expect(refused).rejects.toMatchObject({ code: 'INVALID_OPTIONS' })
      expect(await viewOf(store, lease)).toMatchObject({ state: 'in_progress', result: undefined })
    })
  })
}
