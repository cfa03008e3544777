/** All calls of the store, and so all tenants, share the connections of the client. */
import { execFile } from 'node:child_process'
import { createServer, request } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { promisify } from 'node:util'
import type { DynamoDBClientConfig } from '@aws-sdk/client-dynamodb'
import { expect, it, onTestFinished } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { StoreFailedError } from '../../../src/core/errors.ts'
import type { Store } from '../../../src/core/store/store.ts'
import { bytes } from '../../../src/testing/store-cases/store-case.ts'
import { useDynamodb } from './setup.ts'

const setup = useDynamodb()

const ENOUGH: DynamoDBClientConfig = { requestHandler: { httpAgent: { maxSockets: 300 } } }

/** The warnings in a process whose client has this many connections. */
async function warningsOf(maxSockets: number): Promise<string[]> {
  const { server, table } = await setup()
  const program = join(import.meta.dirname, 'sockets-program.ts')
  const args = [program, server.endpoint, table, `${maxSockets}`]
  const { stderr } = await promisify(execFile)(process.execPath, args)
  return stderr.split('\n').filter((line) => line.includes('OncekeyWarning'))
}

it('does not warn about a client with a connection for each call', async () => {
  expect(await warningsOf(288)).toEqual([])
})

it('warns once about a client with fewer connections, and names the setting', async () => {
  expect(await warningsOf(50)).toEqual([
    expect.stringMatching(/at most 50 connections.*: \{ httpAgent: \{ maxSockets: 288 \} \}/),
  ])
})

/** A proxy that leaves the requests for records of `state.tenant` without an answer. */
async function holdingProxy(endpoint: string) {
  const { hostname, port } = new URL(endpoint)
  const state = { tenant: undefined as string | undefined, held: 0 }
  const proxy = createServer((incoming, answer) => {
    const chunks: Buffer[] = []
    incoming.on('data', (chunk: Buffer) => chunks.push(chunk))
    incoming.on('end', () => {
      const body = Buffer.concat(chunks)
      if (state.tenant !== undefined && body.includes(state.tenant)) return void state.held++
      const { method, url: path, headers } = incoming
      const onward = request({ hostname, port, method, path, headers }, (reply) => {
        answer.writeHead(reply.statusCode!, reply.headers)
        reply.pipe(answer)
      })
      onward.on('error', () => answer.destroy())
      onward.end(body)
    })
  })
  await new Promise<void>((resolve) => {
    proxy.listen(0, '127.0.0.1', resolve)
  })
  onTestFinished(() => {
    proxy.closeAllConnections()
    proxy.close()
  })
  return { state, endpoint: `http://127.0.0.1:${(proxy.address() as AddressInfo).port}` }
}

/** The returned function runs a request and returns how it ended. */
function serve(store: Store) {
  const engine = createEngine({ store, storeTimeoutMs: 60_000, sweepEveryMs: 0, reapEveryMs: 0 })
  onTestFinished(async () => void (await engine.close({ graceMs: 0 })))
  return (tenant: string, key: string, work = () => Promise.resolve()): Promise<string> => {
    const scope = { tenant, operation: 'pay' }
    const paid = async () => {
      await work()
      return bytes('paid')
    }
    return engine.run({ scope, key, fingerprint: 'f' }, paid).then(
      ({ kind }) => kind,
      (error: unknown) => (error as StoreFailedError).failure,
    )
  }
}

// 100 results and then 100 claims of one tenant get no answer from the network.
it('serves other tenants while claims and results of one tenant hang in the network', async () => {
  const { connect, open, server } = await setup()
  const { state, endpoint } = await holdingProxy(server.endpoint)
  const run = serve(open({ client: connect({ ...ENOUGH, endpoint, maxAttempts: 1 }) }))
  const gate = Promise.withResolvers<void>()
  let running = 0
  const work = () => {
    running++
    return gate.promise
  }
  const slow = Array.from({ length: 100 }, (_, n) => run('slow-tenant', `result-${n}`, work))
  await expect.poll(() => running, { timeout: 30_000 }).toBe(100)
  state.tenant = 'slow-tenant'
  gate.resolve()
  slow.push(...Array.from({ length: 100 }, (_, n) => run('slow-tenant', `claim-${n}`)))
  // 48 of the claims and 48 of the results, and more if calls time out on a slow machine.
  await expect.poll(() => state.held, { timeout: 30_000 }).toBeGreaterThanOrEqual(96)
  const others = Array.from({ length: 20 }, (_, n) => run('other', `key-${n}`))
  expect(new Set(await Promise.all(others))).toEqual(new Set(['ran']))
})
