/** Middlewares before the guard, which run code after `await next()`. */
import { Readable } from 'node:stream'
import compress from 'koa-compress'
import type { Context, Middleware } from 'koa'
import { describe, expect, it } from 'vitest'
import { idempotencyOf } from '../../../src/adapters/koa/index.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { gate, header, json, problemOf, serve, text, turns, wrapStore } from '../run-express.ts'
import { counted, guardOf, KOAS, listenerOf, Router, serveKoa, tempStore } from '../run-koa.ts'

const created = (ctx: Context, run: number) => {
  ctx.status = 201
  ctx.body = { run }
}

describe.each(KOAS)('%s', (_name, koa) => {
  it('records the changes that middlewares before the guard make to the reply', async () => {
    const envelope: Middleware = async (ctx, next) => {
      await next()
      ctx.body = { data: ctx.body as unknown }
      ctx.set('Content-Language', 'en')
    }
    const handler = counted(created)
    const { send } = await serveKoa(koa, envelope, guardOf(), handler)
    const first = await send({ key: 'k' })
    const retry = await send({ key: 'k' })
    expect([first.status, json(first)]).toEqual([201, { data: { run: 1 } }])
    expect([retry.status, json(retry)]).toEqual([201, { data: { run: 1 } }])
    expect(retry.body).toEqual(first.body)
    expect(header(retry, 'content-language')).toBe('en')
    expect(handler.runs).toBe(1)
  })

  it('keeps the status, body and recorded headers of a replay unchanged', async () => {
    const tamper: Middleware = async (ctx, next) => {
      await next()
      if (ctx.get('x-tamper') === '') return
      ctx.status = 418
      ctx.type = 'text/html'
      ctx.set('Content-Encoding', 'br')
      ctx.body = 'tampered'
    }
    const { send, errors } = await serveKoa(koa, tamper, guardOf(), counted(created))
    const first = await send({ key: 'k' })
    const retry = await send({ key: 'k', headers: { 'x-tamper': '1' } })
    expect(retry.status).toBe(201)
    expect(retry.body).toEqual(first.body)
    expect(header(retry, 'content-type')).toBe(header(first, 'content-type'))
    expect(header(retry, 'content-encoding')).toBeUndefined()
    expect(errors).toEqual([])
  })

  it('shows middlewares the status, and sends the headers and cookies that they set', async () => {
    const seen: unknown[] = []
    const session: Middleware = async (ctx, next) => {
      ctx.set('Access-Control-Allow-Origin', 'https://shop.example')
      await next()
      seen.push([ctx.status, ctx.length])
      if (ctx.status === 404) ctx.throw(404)
      ctx.cookies.set('visit', String(seen.length))
      ctx.res.setHeader('X-Response-Time', '1ms')
    }
    const { send, errors } = await serveKoa(koa, session, guardOf(), counted(created))
    const first = await send({ key: 'k' })
    const retry = await send({ key: 'k' })
    const missing = await send()
    expect(errors).toEqual([])
    expect(seen.slice(0, 2)).toEqual([
      [201, 9],
      [201, 9],
    ])
    expect([first, retry, missing].map((reply) => header(reply, 'set-cookie'))).toEqual([
      'visit=1; path=/; httponly',
      'visit=2; path=/; httponly',
      'visit=3; path=/; httponly',
    ])
    for (const reply of [first, retry, missing]) {
      expect(header(reply, 'x-response-time')).toBe('1ms')
      expect(header(reply, 'access-control-allow-origin')).toBe('https://shop.example')
    }
    expect(problemOf(missing)).toEqual([400, 'idempotency_key_missing'])
  })

  it('sends a replay although a middleware before the guard fails after it', async () => {
    let isBroken = false
    const broken: Middleware = async (_ctx, next) => {
      await next()
      if (isBroken) throw new Error('broken')
    }
    const { send, errors } = await serveKoa(koa, broken, guardOf(), counted(created))
    const first = await send({ key: 'k' })
    isBroken = true
    const retry = await send({ key: 'k' })
    expect([retry.status, header(retry, 'idempotent-replayed')]).toEqual([201, 'true'])
    expect(retry.body).toEqual(first.body)
    expect(errors.map(({ message }) => message)).toEqual(['broken'])
  })

  it('sends a replay when ctx.respond is false', async () => {
    const bypass: Middleware = async (ctx, next) => {
      ctx.respond = false
      await next()
    }
    const handler = counted((ctx) => ctx.res.end('past Koa'))
    const { send } = await serveKoa(koa, bypass, guardOf(), handler)
    for (const replayed of [undefined, 'true']) {
      const reply = await send({ key: 'k' })
      expect([text(reply), header(reply, 'idempotent-replayed')]).toEqual(['past Koa', replayed])
    }
    expect(handler.runs).toBe(1)
  })

  it('runs no retry when a middleware fails after the handler succeeded', async () => {
    const broken: Middleware = async (_ctx, next) => {
      await next()
      throw new Error('broken')
    }
    const handler = counted(created)
    const { send } = await serveKoa(koa, broken, guardOf(), handler)
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(problemOf(await send({ key: 'k' }))).toEqual([409, 'idempotency_outcome_unknown'])
    expect(handler.runs).toBe(1)
  })

  it.each([500, 429])('runs no retry when a middleware changes a success to %d', async (status) => {
    const rewrite: Middleware = async (ctx, next) => {
      await next()
      ctx.status = status
    }
    const handler = counted(created)
    const { send } = await serveKoa(koa, rewrite, guardOf(), handler)
    expect((await send({ key: 'k' })).status).toBe(status)
    expect((await send({ key: 'k' })).status).not.toBe(201)
    expect(handler.runs).toBe(1)
  })

  it.each([503, 408, 404, 422])(
    'leaves the outcome unknown when a middleware sends %d while the handler runs',
    async (status) => {
      const [entered, { passed, open }] = [gate(), gate()]
      const timeout: Middleware = async (ctx, next) => {
        const ended = next()
        if (ctx.get('x-hurry') === '') return ended
        await Promise.race([ended, entered.passed])
        ctx.status = status
      }
      const handler = counted(async (ctx) => {
        entered.open()
        await passed
        ctx.body = 'done'
      })
      const { send } = await serveKoa(koa, timeout, guardOf(), handler)
      expect((await send({ key: 'k', headers: { 'x-hurry': '1' } })).status).toBe(status)
      open()
      expect(problemOf(await send({ key: 'k' }))).toEqual([409, 'idempotency_outcome_unknown'])
      expect(handler.runs).toBe(1)
    },
  )

  it('does not enter the handler when the request was answered during the claim', async () => {
    const isBusy = gate()
    const store = memoryStore()
    const slow = wrapStore(store, {
      claim: async (requests) => {
        await isBusy.passed
        return store.claim(requests)
      },
    })
    const impatient: Middleware = async (ctx, next) => {
      const ended = next().catch(() => undefined)
      if (ctx.get('x-hurry') === '') return void (await ended)
      ctx.status = 503
    }
    const handler = counted(created)
    const { send } = await serveKoa(koa, impatient, guardOf({ store: slow }), handler)
    expect((await send({ key: 'k', headers: { 'x-hurry': '1' } })).status).toBe(503)
    isBusy.open()
    await turns()
    expect(handler.runs).toBe(0)
    expect((await send({ key: 'k' })).status).toBe(201)
  })

  it('shows middlewares the reply of a transaction and sends the headers they add', async () => {
    const seen: number[] = []
    const log: Middleware = async (ctx, next) => {
      await next()
      seen.push(ctx.status)
      ctx.set('X-Seen', String(seen.length))
      ctx.body = 'not this'
    }
    const handler = counted(async (ctx) => {
      ctx.set('X-Handler', 'dropped')
      await idempotencyOf(ctx).transaction(() => ({ status: 201, body: '{"paid":true}' }))
    })
    const { send, errors } = await serveKoa(koa, log, guardOf({ store: tempStore() }), handler)
    for (const n of [1, 2]) {
      const reply = await send({ key: 'k' })
      expect([reply.status, text(reply)]).toEqual([201, '{"paid":true}'])
      expect(header(reply, 'x-seen')).toBe(String(n))
      expect(header(reply, 'x-handler')).toBeUndefined()
    }
    expect([seen, handler.runs, errors]).toEqual([[201, 201], 1, []])
  })

  it('sends the reply of a transaction at once although the handler still runs', async () => {
    const { passed, open } = gate()
    const seen = gate<number>()
    const log: Middleware = async (ctx, next) => {
      await next()
      seen.open(ctx.status)
    }
    const handler = counted(async (ctx) => {
      await idempotencyOf(ctx).transaction(() => ({ status: 201, body: 'paid' }))
      await passed
    })
    const { send } = await serveKoa(koa, log, guardOf({ store: tempStore() }), handler)
    const first = await send({ key: 'k' })
    open()
    expect([first.status, text(first), await seen.passed]).toEqual([201, 'paid', 201])
  })

  it.each(['gzip', 'br', 'zstd'])(
    'records and replays %s of koa-compress before or behind the guard',
    async (coding) => {
      const body = JSON.stringify({ text: 'a'.repeat(5000) })
      const reply: Middleware = (ctx) => {
        ctx.type = 'application/json'
        ctx.body = body
      }
      const router = new Router()
      const guard = guardOf()
      router.post('/inside', guard, compress(), reply)
      router.post('/outside', compress(), guard, reply)
      router.post('/unprotected', compress(), reply)
      const { send } = await serveKoa(koa, router.routes())
      const headers = { 'accept-encoding': coding }
      const bare = await send({ path: '/unprotected', headers })
      expect(header(bare, 'content-encoding')).toBe(coding)
      for (const path of ['/outside', '/inside']) {
        const first = await send({ path, key: 'k', headers })
        const retry = await send({ path, key: 'k', headers })
        const plain = await send({ path, key: 'k' })
        expect(header(first, 'content-encoding')).toBe(coding)
        expect(first.body).toEqual(bare.body)
        expect(header(retry, 'content-encoding')).toBe(coding)
        expect(retry.body).toEqual(bare.body)
        expect(header(retry, 'vary')).toBe(header(first, 'vary'))
        // A retry that does not accept the coding gets the decoded body.
        expect([header(plain, 'content-encoding'), text(plain)]).toEqual([undefined, body])
      }
    },
  )

  it('releases the key when a stream fails while it is compressed', async () => {
    const handler = counted((ctx, run) => {
      ctx.type = 'text/plain'
      if (run === 1) ctx.body = Readable.from(failing())
      else ctx.body = 'done'
    })
    const { send } = await serveKoa(koa, compress(), guardOf(), handler)
    const headers = { 'accept-encoding': 'gzip' }
    await send({ key: 'k', headers }).catch(() => undefined)
    expect(text(await send({ key: 'k', headers }))).toBe('done')
  })

  it('keeps app.currentContext in the handler', async () => {
    const app = new koa({ asyncLocalStorage: true })
    const seen: boolean[] = []
    app.use(guardOf())
    app.use((ctx) => {
      seen.push((app.currentContext as unknown) === ctx)
      ctx.body = 'ok'
    })
    const { send } = await serve(listenerOf(app))
    expect((await send({ key: 'k' })).status).toBe(200)
    expect(seen).toEqual([true])
  })

  it('returns 500 when two guards are mounted', async () => {
    const { send, errors } = await serveKoa(koa, guardOf(), guardOf(), counted(created))
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(errors[0]?.message).toMatch('mounted twice')
  })
})

async function* failing() {
  yield Buffer.alloc(5000, 'a')
  await turns(2)
  throw new Error('the stream broke')
}
