import { expect, it, onTestFinished } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { Engine, EngineOptions } from '../../../src/core/engine/engine-contract.ts'
import type { EngineEvent } from '../../../src/core/events.ts'
import type { StoreFailedError } from '../../../src/core/errors.ts'
import { postgresStore } from '../../../src/stores/postgres/index.ts'
import { startTcpProxy } from '../../servers/tcp-proxy.ts'
import { usePostgres } from './setup.ts'

const setup = usePostgres({ private: true })

const STORE_TIMEOUT_MS = 1_000

/** An engine whose events a test can wait for. */
function listening(options: EngineOptions) {
  const waiting = new Set<(event: EngineEvent) => void>()
  const onEvent = (event: EngineEvent) => {
    for (const tell of waiting) tell(event)
  }
  const engine = createEngine({ ...options, onEvent, storeTimeoutMs: STORE_TIMEOUT_MS })
  onTestFinished(async () => void (await engine.close({ graceMs: 0 })))
  const becomes = (to: string) =>
    new Promise<void>((resolve) => {
      const tell = (event: EngineEvent) => {
        if (event.kind !== 'breaker_changed' || event.to !== to) return
        waiting.delete(tell)
        resolve()
      }
      waiting.add(tell)
    })
  return { engine, becomes }
}

let keys = 0

async function run(engine: Engine): Promise<string> {
  const request = { scope: { tenant: 't', operation: 'o' }, key: `${keys++}`, fingerprint: 'f' }
  try {
    return (await engine.run(request, () => new Uint8Array(1))).kind
  } catch (error) {
    return (error as StoreFailedError).failure
  }
}

it('rejects requests at once while the network is silent, and serves the next one', async () => {
  const { url, connect, open } = await setup()
  await open()
  const { port } = new URL(url)
  const proxy = await startTcpProxy({ host: '127.0.0.1', port: Number(port) })
  onTestFinished(() => proxy.close())
  const pool = connect({ connectionString: proxy.through(url), connectionTimeoutMillis: 500 })
  const { engine, becomes } = listening({ store: postgresStore({ pool }) })
  expect(await run(engine)).toBe('ran')
  expect(await engine.health()).toMatchObject({ status: 'ready', store: { state: 'answering' } })

  proxy.silence()
  const opened = becomes('open')
  while ((await run(engine)) === 'unavailable');
  await opened
  const refused = await Promise.all(Array.from({ length: 1_000 }, () => run(engine)))
  expect(new Set(refused)).toEqual(new Set(['refused']))
  expect(await engine.health()).toMatchObject({ status: 'unready', store: { state: 'failing' } })

  const closed = becomes('closed')
  proxy.resume('dead')
  await closed
  expect(await run(engine)).toBe('ran')
  expect(await engine.health()).toMatchObject({ status: 'ready', breaker: 'closed' })
})

// A standby, or an old primary after a failover, answers every read.
it('is not ready on a server that accepts no writes', async () => {
  const { open, app, connect, column } = await setup()
  await open()
  const [name] = await column('SELECT current_database()')
  await app.query(`ALTER DATABASE ${String(name)} SET default_transaction_read_only = on`)
  onTestFinished(async () => {
    const admin = connect({ options: '-c default_transaction_read_only=off' })
    await admin.query(`ALTER DATABASE ${String(name)} RESET default_transaction_read_only`)
  })
  const { engine, becomes } = listening({ store: postgresStore({ pool: connect() }) })
  expect(await engine.list({ state: 'completed' })).toEqual([])
  const { status, store } = await engine.health()
  expect([status, store.state]).toEqual(['unready', 'never_answered'])
  expect(store.error).toContain('read-only transaction (connect to the primary')

  const opened = becomes('open')
  for (let n = 0; n < 3; n++) expect(await run(engine)).toBe('unavailable')
  await opened
  const probed = becomes('half_open')
  await probed
  await becomes('open')
  expect(await run(engine)).toBe('refused')
})

it('is ready again after the database was restarted', async () => {
  const { server, open } = await setup()
  const { engine, becomes } = listening({ store: await open() })
  expect(await run(engine)).toBe('ran')
  await server.kill()
  const opened = becomes('open')
  while ((await run(engine)) === 'unavailable');
  await opened
  expect(await engine.health()).toMatchObject({ status: 'unready' })
  const closed = becomes('closed')
  await server.start()
  await closed
  expect(await engine.health()).toMatchObject({ status: 'ready' })
})
