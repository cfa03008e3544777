/** Handlers that commit their rows together with the key, and replies that cannot be recorded. */
import { Res } from '@nestjs/common'
import { describe, expect, it, onTestFinished } from 'vitest'
import { currentIdempotency } from '../../../src/http/guard/current.ts'
import { Idempotent, type IdempotencyOptions } from '../../../src/adapters/nest/index.ts'
import { sqliteStore, type SqliteTransaction } from '../../../src/stores/sqlite/index.ts'
import { scratchFolder } from '../../stores/scratch-folder.ts'
import { failing } from '../../http/reply/encryptions.ts'
import { header, json, problemOf, type Reply } from '../run-express.ts'
import { controllerOf, PLATFORMS, serveNest, type Platform, type RouteSpec } from '../run-nest.ts'

interface AnyResponse {
  status(status: number): AnyResponse
  send(body?: unknown): AnyResponse
}

async function setup(
  platform: Platform,
  route: Pick<RouteSpec, 'handle' | 'params'>,
  options: Partial<IdempotencyOptions> = {},
) {
  const folder = scratchFolder()
  const store = sqliteStore({ path: folder.file('keys.db') })
  onTestFinished(async () => {
    await store.close()
    folder.remove()
  })
  const create: RouteSpec = { path: 'orders', decorators: [Idempotent()], ...route }
  const server = await serveNest({
    platform,
    controllers: [controllerOf({ create })],
    idempotency: { store, ...options },
  })
  return { ...server, send: () => server.send({ path: '/orders', key: 'k' }) }
}

const insert = (tx: SqliteTransaction) => {
  tx.exec('CREATE TABLE IF NOT EXISTS orders (id TEXT)')
  tx.prepare('INSERT INTO orders (id) VALUES (?)').run('1')
  return Number(tx.prepare('SELECT count(*) AS n FROM orders').get()!['n'])
}

const replayed = (reply: Reply) => header(reply, 'idempotent-replayed')

describe.each(PLATFORMS)('Nest on %s', (platform) => {
  it('sends the reply that a transaction returned instead of the empty reply of Nest', async () => {
    const { send } = await setup(platform, {
      handle: () =>
        currentIdempotency().transaction<SqliteTransaction>((tx) => ({
          status: 202,
          headers: { location: '/orders/1' },
          body: { orders: insert(tx) },
        })),
    })
    for (const expected of [undefined, 'true']) {
      const reply = await send()
      expect([reply.status, json(reply), replayed(reply)]).toEqual([202, { orders: 1 }, expected])
      expect(header(reply, 'location')).toBe('/orders/1')
    }
  })

  it('replays a reply that the handler sent inside a transaction', async () => {
    const { send } = await setup(platform, {
      params: [Res()],
      handle: (response: AnyResponse) =>
        currentIdempotency().transaction<SqliteTransaction>((tx) => {
          response.status(201).send({ orders: insert(tx) })
        }),
    })
    for (const expected of [undefined, 'true']) {
      const reply = await send()
      expect([reply.status, json(reply), replayed(reply)]).toEqual([201, { orders: 1 }, expected])
    }
  })

  it('rolls back when a transaction throws, and runs a retry', async () => {
    let runs = 0
    const { send } = await setup(platform, {
      handle: () =>
        currentIdempotency().transaction<SqliteTransaction>((tx) => {
          const orders = insert(tx)
          if (++runs === 1) throw new Error('constraint')
          return { status: 201, body: { orders } }
        }),
    })
    expect((await send()).status).toBe(500)
    expect(json(await send())).toEqual({ orders: 1 })
    expect(runs).toBe(2)
  })

  it('returns 500 when the reply cannot be encrypted after Nest has ended its part', async () => {
    const { send } = await setup(platform, { handle: () => 'paid' }, { encryption: failing })
    const first = await send()
    expect([first.status, json(first)]).toEqual([
      500,
      { statusCode: 500, message: 'Internal server error' },
    ])
    expect(problemOf(await send())).toEqual([409, 'idempotency_outcome_unknown'])
  })
})
