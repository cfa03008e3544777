import { DynamoDB } from '@aws-sdk/client-dynamodb'
import { expect, it, onTestFinished } from 'vitest'
import { createEngine } from '../../src/core/engine.ts'
import { dynamodbStore } from '../../src/stores/dynamodb/index.ts'
import { clientConfig } from '../servers/dynalite.ts'
import { startTcpProxy } from '../servers/tcp-proxy.ts'
import { useDynamodb } from './dynamodb-setup.ts'

const open = useDynamodb()
const TIMEOUT_MS = 300
const bytes = (text: string) => new TextEncoder().encode(text)

/** An engine on the table by way of a network that can fall silent. */
async function setup() {
  const { server, table } = await open()
  const { hostname, port } = new URL(server.endpoint)
  const proxy = await startTcpProxy({ host: hostname, port: Number(port) })
  onTestFinished(() => proxy.close())
  // As the guide shows it: the SDK by itself would wait for ever.
  const client = new DynamoDB(clientConfig(proxy.through(server.endpoint)))
  onTestFinished(() => client.destroy())
  const store = dynamodbStore({ client, table })
  const engine = createEngine({
    store,
    storeTimeoutMs: TIMEOUT_MS,
    breaker: false,
    sweepEveryMs: 0,
    reapEveryMs: 0,
    onEvent: () => undefined,
  })
  const run = (key: string) =>
    engine.run({ scope: { tenant: 't', operation: 'pay' }, key, fingerprint: 'f' }, () =>
      bytes(key),
    )
  return { proxy, engine, store, run }
}

const settled = (calls: Promise<unknown>[]) =>
  Promise.all(
    calls.map((call) =>
      call.then(
        () => 'answered',
        (error: unknown) => (error as { failure?: string }).failure,
      ),
    ),
  )

it('leaves no connection behind after six silent losses in a row', async () => {
  const { proxy, engine, run } = await setup()
  await run('warm')
  for (let loss = 0; loss < 6; loss++) {
    proxy.silence()
    const lost = Array.from({ length: 30 }, (_, n) => run(`lost-${loss}-${n}`))
    expect(new Set(await settled(lost))).toEqual(new Set(['unavailable']))
    proxy.resume('dead')
    expect(await run(`after-${loss}`)).toMatchObject({ kind: 'ran' })
  }
  await engine.close()
})

it('makes no further call to the service after the engine has given the call up', async () => {
  const { proxy, store } = await setup()
  await store.list({ state: 'completed', limit: 1 })
  proxy.silence()
  const given = new AbortController()
  const listing = store
    .list({ state: 'completed', limit: 1 }, given.signal)
    .catch((error: unknown) => error)
  await new Promise((resolve) => {
    setImmediate(resolve)
  })
  given.abort(new Error('no answer within 300 ms'))
  expect(await listing).toMatchObject({ code: 'STORE_FAILED', failure: 'unavailable' })
  await expect(store.read({ identity: '0'.repeat(32) }, given.signal)).rejects.toMatchObject({
    code: 'STORE_FAILED',
  })
  proxy.resume('dead')
})
