import { once } from 'node:events'
import { connect as connectTo, createServer, type AddressInfo, type Socket } from 'node:net'
import type { PoolConnection } from 'mysql2/promise'
import { expect, it, onTestFinished } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { mysqlStore } from '../../../src/stores/mysql/index.ts'
import {
  claimRequest,
  completeOf,
  hold,
  ofKind,
  only,
  settle,
  viewOf,
} from '../../../src/testing/store-cases/store-case.ts'
import { completion, pay, useMariadb } from './setup.ts'

const setup = useMariadb({ private: true })

const REQUEST = { scope: { tenant: 't', operation: 'pay' }, key: 'k', fingerprint: 'f' }

it('rolls back and can retry after a connection is killed during a statement', async () => {
  const { open, app, paid } = await setup()
  const store = await open()
  const lease = await hold(store)
  const cut = store.transaction<PoolConnection>(lease, async (tx) => {
    await pay(tx, 'cut')
    const sleeping = tx.query('SELECT SLEEP(20)')
    const caught = sleeping.catch((error: unknown) => error)
    await expect
      .poll(async () => (await app.query('SHOW PROCESSLIST'))[0])
      .toContainEqual(expect.objectContaining({ Id: tx.threadId, Info: 'SELECT SLEEP(20)' }))
    await app.query(`KILL CONNECTION ${tx.threadId}`)
    throw await caught
  })
  await expect(cut).rejects.toThrow(/kill|closed|lost/i)
  expect(await paid()).toEqual([])
  expect((await viewOf(store, lease)).state).toBe('in_progress')
  ofKind(await store.transaction(lease, () => completion()), 'settled')
})

it('settles leases after idle connections were killed', async () => {
  const { open, connect, app, column } = await setup()
  const store = await open({ pool: connect({ connectionLimit: 3 }) })
  const leases = await Promise.all(['a', 'b', 'c'].map((key) => hold(store, { key })))
  const own = 'SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> '
  for (const id of await column(`${own} CONNECTION_ID()`)) {
    await app.query(`KILL CONNECTION ${Number(id)}`).catch(() => undefined)
  }
  // The first attempts may fail. A repeated settlement recognises itself.
  for (const lease of leases) {
    const settled = () => settle(store, completeOf(lease)).catch((error: unknown) => error)
    await expect.poll(settled).toMatchObject({ kind: 'settled' })
  }
})

/**
 * A proxy that forwards everything until the client sends `text`. Then it cuts the connection:
 * before the request reaches the server, or after the server has executed it and answered.
 */
async function losing(url: string, text: string, lost: 'request' | 'answer') {
  const server = new URL(url)
  let isCut = false
  const sockets = new Set<Socket>()
  const proxy = createServer((client) => {
    const upstream = connectTo(Number(server.port), server.hostname)
    let isDoomed = false
    const end = () => [client, upstream].forEach((socket) => socket.destroy())
    for (const socket of [client, upstream]) {
      sockets.add(socket)
      socket.on('error', end).on('close', end)
    }
    client.on('data', (chunk) => {
      if (!isCut && chunk.includes(text)) {
        isCut = true
        if (lost === 'request') return end()
        isDoomed = true
      }
      upstream.write(chunk)
    })
    upstream.on('data', (chunk) => {
      if (isDoomed) end()
      else client.write(chunk)
    })
  })
  proxy.listen(0, '127.0.0.1')
  await once(proxy, 'listening')
  onTestFinished(() => {
    for (const socket of sockets) socket.destroy()
    proxy.close()
  })
  const own = new URL(url)
  own.port = String((proxy.address() as AddressInfo).port)
  return { uri: own.href, isCut: () => isCut }
}

/** With the byte of the protocol before it, so that it does not match READ COMMITTED. */
const COMMIT = '\u0003COMMIT'

it('detects that a commit whose answer was lost has taken effect', async () => {
  const { url, open, connect, paid } = await setup()
  const store = await open()
  const { uri, isCut } = await losing(url, COMMIT, 'answer')
  const engine = createEngine({ store: mysqlStore({ pool: connect({ uri }) }) })
  const outcome = await engine.run(REQUEST, (context) =>
    context.transaction<PoolConnection>(async (tx) => {
      await pay(tx, 'once')
      return new Uint8Array([1])
    }),
  )
  expect([isCut(), outcome.kind]).toEqual([true, 'ran'])
  expect(await paid()).toEqual(['once'])
  expect((await store.list({ state: 'completed', limit: 10 })).length).toBe(1)
  await engine.close()
})

it('detects that a commit did not reach the server, and lets the retry run', async () => {
  const { url, open, connect, paid } = await setup()
  await open()
  const { uri, isCut } = await losing(url, COMMIT, 'request')
  const engine = createEngine({ store: mysqlStore({ pool: connect({ uri }) }) })
  let runs = 0
  const run = () =>
    engine.run(REQUEST, (context) =>
      context.transaction<PoolConnection>(async (tx) => {
        await pay(tx, `run ${++runs}`)
        return new Uint8Array([1])
      }),
    )
  await expect(run()).rejects.toMatchObject({ code: 'STORE_FAILED' })
  expect(isCut()).toBe(true)
  expect((await run()).kind).toBe('ran')
  expect(await paid()).toEqual(['run 2'])
  await engine.close()
})

it.each(['request', 'answer'] as const)(
  'recognises a repeated claim and a repeated settlement after their %s was lost',
  async (lost) => {
    const { url, open, connect } = await setup()
    const store = await open()
    const insert = await losing(url, 'INSERT', lost)
    const request = claimRequest()
    const first = mysqlStore({ pool: connect({ uri: insert.uri }) }).claim([request])
    await expect(first).rejects.toMatchObject({ code: 'STORE_FAILED', failure: 'unavailable' })
    expect((await store.list({ state: 'in_progress', limit: 1 })).length).toBe(
      lost === 'request' ? 0 : 1,
    )
    const { lease } = ofKind(only(await store.claim([request])), 'claimed')

    const update = await losing(url, 'UPDATE', lost)
    const settling = settle(mysqlStore({ pool: connect({ uri: update.uri }) }), completeOf(lease))
    await expect(settling).rejects.toMatchObject({ code: 'STORE_FAILED', failure: 'unavailable' })
    ofKind(await settle(store, completeOf(lease)), 'settled')
  },
)

it('runs no key twice and loses none while the server crashes and restarts', async () => {
  const { server, open, paid } = await setup()
  const store = await open()
  const engine = createEngine({ store, onLapse: 'rerun' })
  const run = (key: string) =>
    engine.run({ ...REQUEST, key }, (context) =>
      context.transaction<PoolConnection>(async (tx) => {
        await pay(tx, key)
        return new Uint8Array()
      }),
    )
  const acknowledged: string[] = []
  const stopped = new AbortController()
  const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms))
  const client = async (name: string) => {
    for (let n = 0; !stopped.signal.aborted; n++) {
      const key = `${name}-${n}`
      // Retries the same key, as clients do, until a request succeeds.
      for (let tries = 0; tries < 40; tries++) {
        const outcome = await run(key).catch(() => undefined)
        if (outcome?.kind === 'ran' || outcome?.kind === 'replayed') {
          acknowledged.push(key)
          break
        }
        if (outcome?.kind === 'unknown' || stopped.signal.aborted) break
        await pause(20)
      }
    }
  }
  const clients = Array.from({ length: 8 }, (_, n) => client(`c${n}`))
  const counts = (more: number) => {
    const before = acknowledged.length
    return expect.poll(() => acknowledged.length > before + more, { timeout: 25_000 }).toBe(true)
  }
  await counts(40)
  await server.kill()
  await pause(100)
  await server.start()
  await counts(40)
  stopped.abort()
  await Promise.all(clients)

  const rows = (await paid()) as string[]
  expect(new Set(rows).size).toBe(rows.length)
  expect(rows).toEqual(expect.arrayContaining(acknowledged))
  // Every acknowledged key has a row, and every key with a row has a result.
  const completed = await store.list({ state: 'completed', limit: 100_000 })
  expect(completed.map((view) => view.key).toSorted()).toEqual(rows.toSorted())
  await engine.close()
})
