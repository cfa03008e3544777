import { describe, expect, it } from 'vitest'
import { createEngine, type EngineOptions } from '../../src/core/engine.ts'
import type { RunContext } from '../../src/core/run-context.ts'
import { hold, viewOf } from '../../src/testing/store-cases/store-case.ts'
import { TOOLS, type OpenTransaction } from './postgres-join-tools.ts'
import { completion, usePostgres } from './postgres-setup.ts'

const setup = usePostgres()
const tools = Object.entries(TOOLS)

const bytes = (text: string) => new TextEncoder().encode(text)
const SCOPE = { tenant: 'acme', operation: 'pay' }
const REQUEST = { scope: SCOPE, key: 'k', fingerprint: 'f' }

async function withEngine(options: Partial<EngineOptions> = {}) {
  const database = await setup()
  const store = await database.open()
  const engine = createEngine({ store, sweepEveryMs: 0, reapEveryMs: 0, ...options })
  const record = () => engine.read({ scope: SCOPE, key: 'k' })
  return { ...database, store, engine, record }
}

/** Pays, and completes the key with it. */
const payIn =
  (key = 'paid') =>
  (context: RunContext) =>
  async ({ tx, pay }: OpenTransaction): Promise<Uint8Array> => {
    await pay(key)
    await context.completeIn(tx, bytes(`receipt of ${key}`))
    return bytes(`receipt of ${key}`)
  }

describe.each(tools)('a transaction of %s', (_name, openTool) => {
  it('commits the key with its rows', async () => {
    const { engine, paid, ...connections } = await withEngine()
    const tool = openTool(connections)
    const run = () => engine.run(REQUEST, (context) => tool.transact(payIn()(context)))
    expect(await run()).toMatchObject({ kind: 'ran', result: Buffer.from('receipt of paid') })
    expect(await run()).toMatchObject({ kind: 'replayed', result: Buffer.from('receipt of paid') })
    expect(await paid()).toEqual(['paid'])
  })

  it('that is rolled back leaves neither', async () => {
    const { engine, paid, record, ...connections } = await withEngine()
    const tool = openTool(connections)
    const declined = new Error('declined')
    const running = engine.run(REQUEST, (context) =>
      tool.transact(async (open) => {
        await payIn()(context)(open)
        throw declined
      }),
    )
    await expect(running).rejects.toBe(declined)
    expect(await paid()).toEqual([])
    expect(await record()).toMatchObject({ state: 'failed_retryable', proof: 'proven' })
    const again = engine.run(REQUEST, (context) => tool.transact(payIn('again')(context)))
    expect(await again).toMatchObject({ kind: 'ran' })
    expect(await paid()).toEqual(['again'])
  })

  it('of a holder that was fenced out is rolled back', async () => {
    const { engine, app, paid, record, ...connections } = await withEngine({ onLapse: 'rerun' })
    const tool = openTool(connections)
    const running = engine.run(REQUEST, (context) =>
      tool.transact(async (open) => {
        await open.pay('stale')
        await app.query(`UPDATE oncekey_record SET lease_until = now() - interval '1 second'`)
        const other = engine.run(REQUEST, () => bytes('from the other'))
        expect(await other).toMatchObject({ kind: 'ran' })
        await context.completeIn(open.tx, bytes('stale'))
        return bytes('stale')
      }),
    )
    await expect(running).rejects.toMatchObject({ code: 'LEASE_LOST' })
    expect(await paid()).toEqual([])
    expect(await record()).toMatchObject({ result: Buffer.from('from the other'), attempt: 2 })
  })

  it('is not to be mistaken for its pool', async () => {
    const { store, ...connections } = await withEngine()
    const { mistake } = openTool(connections)
    const lease = await hold(store)
    const refused = store.settleIn(mistake, lease, completion())
    await expect(refused).rejects.toMatchObject({ code: 'INVALID_OPTIONS' })
    expect(await viewOf(store, lease)).toMatchObject({ state: 'in_progress', result: undefined })
  })
})
