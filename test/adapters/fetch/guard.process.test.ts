/** Protected handlers of several runtimes, and the requests that they get. */
import { describe, expect, expectTypeOf, it, onTestFinished } from 'vitest'
import { singleTenant } from '../../../src/http/guard/guard-options.ts'
import { currentIdempotency } from '../../../src/http/guard/current.ts'
import {
  idempotency,
  idempotencyOf,
  withIdempotency,
  type IdempotencyOptions,
  type Protect,
  type ProtectedHandler,
} from '../../../src/adapters/fetch/index.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { guards } from '../../../src/http/guard/route-audit.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { gate, header, json, problemOf, text, turns, wrapStore } from '../run-express.ts'
import { serveWeb } from '../web/serve-web.ts'

const optionsOf = (options: Partial<IdempotencyOptions> = {}): IdempotencyOptions => ({
  tenant: singleTenant,
  store: memoryStore(),
  ...options,
})

const post = (body: BodyInit | null = null, headers: Record<string, string> = {}, key = 'k') =>
  new Request('http://localhost/orders?a=1', {
    method: 'POST',
    headers: { 'idempotency-key': key, ...headers },
    body,
    duplex: 'half',
  })

type BodyInit = string | Uint8Array<ArrayBuffer> | ReadableStream | FormData

/** Collects unhandled rejections until the test ends. */
function unhandledRejections(): unknown[] {
  const seen: unknown[] = []
  const listen = (reason: unknown) => void seen.push(reason)
  process.on('unhandledRejection', listen)
  onTestFinished(() => void process.off('unhandledRejection', listen))
  return seen
}

/** A request with additional members, like that of Next.js. */
class NextLikeRequest extends Request {
  get nextUrl(): URL {
    return new URL(this.url)
  }
}

describe('handlers', () => {
  it('passes the same request object to the handler, with its class and its body', async () => {
    const handler = withIdempotency(async (request: NextLikeRequest) => {
      expect(request).toBe(sent)
      return Response.json({ path: request.nextUrl.pathname, got: await request.json() })
    }, optionsOf())
    const headers = { 'idempotency-key': 'k', 'content-type': 'application/json' }
    const init = { method: 'POST', headers, body: '{"a":1}' }
    const sent = new NextLikeRequest('http://localhost/orders', init)

    const reply = await handler(sent)
    expect(await reply.json()).toEqual({ path: '/orders', got: { a: 1 } })
  })

  it('protects a Next.js route handler, and passes its context on', async () => {
    const POST = withIdempotency(
      async (request, { params }: { params: Promise<{ id: string }> }) => {
        expectTypeOf(request).toEqualTypeOf<Request>()
        return Response.json({ id: (await params).id }, { status: 201 })
      },
      optionsOf({ operation: 'pay-order' }),
    )
    type Context = { params: Promise<{ id: string }> }
    expectTypeOf(POST).toEqualTypeOf<ProtectedHandler<Request, [Context]>>()
    const context = { params: Promise.resolve({ id: '7' }) }
    const first = await POST(post(), context)
    const retry = await POST(post(), context)

    expect([first.status, await first.json()]).toEqual([201, { id: '7' }])
    expect([retry.status, await retry.json()]).toEqual([201, { id: '7' }])
    expect(retry.headers.get('idempotent-replayed')).toBe('true')
  })

  it('passes further arguments of Workers, Bun and Deno to the handler', async () => {
    interface Bindings {
      readonly region: string
    }
    interface Execution {
      waitUntil(promise: Promise<unknown>): void
    }
    const waited: unknown[] = []
    const handler = withIdempotency((_request: Request, env: Bindings, ctx: Execution) => {
      ctx.waitUntil(Promise.resolve())
      return new Response(env.region)
    }, optionsOf())
    expectTypeOf(handler).parameters.toEqualTypeOf<[Request, Bindings, Execution]>()
    const reply = await handler(post(), { region: 'eu' }, { waitUntil: (it) => waited.push(it) })

    expect(await reply.text()).toBe('eu')
    expect(waited).toHaveLength(1)
  })

  it('infers the type of the request for the handler and for the options', () => {
    const handler = withIdempotency((request: NextLikeRequest) => Response.json(request.nextUrl), {
      store: memoryStore(),
      tenant: (request) => {
        expectTypeOf(request).toEqualTypeOf<NextLikeRequest>()
        return request.nextUrl.host
      },
    })
    expectTypeOf(handler).parameter(0).toEqualTypeOf<NextLikeRequest>()
    expectTypeOf(handler).returns.toEqualTypeOf<Promise<Response>>()
  })

  it('finds the key with idempotencyOf(request) and with currentIdempotency()', async () => {
    const handler = withIdempotency(async (request: Request) => {
      await turns(1)
      expect(currentIdempotency()).toBe(idempotencyOf(request))
      return new Response(idempotencyOf(request).key)
    }, optionsOf())

    expect(await (await handler(post())).text()).toBe('k')
    expect(() => idempotencyOf(post())).toThrow(/^POST \/orders is not protected/)
  })

  it('passes other methods, and requests that need no key, to the handler unchanged', async () => {
    const handler = withIdempotency(
      (request: Request, note: string) => new Response(`${request.method} ${note}`),
      optionsOf({ keyRequired: false }),
    )
    expect(await (await handler(new Request('http://x/'), 'a')).text()).toBe('GET a')
    const bare = new Request('http://x/', { method: 'POST' })
    expect(await (await handler(bare, 'b')).text()).toBe('POST b')
  })

  it('throws if a handler is wrapped twice, or is not a function', async () => {
    const once = withIdempotency(() => new Response('ran'), optionsOf())
    expect(() => withIdempotency(once, optionsOf())).toThrow(/wrapped in withIdempotency\(\) twice/)
    const router = withIdempotency((request: Request) => once(request), optionsOf())
    await expect(router(post())).rejects.toThrow(/wrapped in withIdempotency\(\) twice/)
    expect(() => withIdempotency(undefined as never, optionsOf())).toThrow(/needs a handler/)
    expect(guards(once, 'POST')).toBe(true)
    expect(guards(once, 'GET')).toBe(false)
  })

  it('shares options between handlers, and overrides some for one handler', async () => {
    const protect = idempotency(optionsOf())
    const loose = protect.with({ keyRequired: false })
    expect(loose.engine).toBe(protect.engine)
    expect(protect(() => new Response('ran')).engine).toBe(protect.engine)
    const bare = () => new Request('http://x/', { method: 'POST' })
    expect((await protect(() => new Response('ran'))(bare())).status).toBe(400)
    expect(await (await loose(() => new Response('ran'))(bare())).text()).toBe('ran')
    const pay = protect.with({ operation: 'pay' })(() => new Response('paid'))
    const refund = protect.with({ operation: 'refund' })(() => new Response('refunded'))
    expect(await (await pay(post())).text()).toBe('paid')
    expect(await (await refund(post())).text()).toBe('refunded')
  })

  it('infers the types of handlers that share options', () => {
    const protect = idempotency({ store: memoryStore(), tenant: singleTenant })
    expectTypeOf(protect).toEqualTypeOf<Protect>()
    const plain = protect((request) => {
      expectTypeOf(request).toEqualTypeOf<Request>()
      return new Response()
    })
    expectTypeOf(plain).toEqualTypeOf<ProtectedHandler<Request, []>>()
    const next = protect((request: NextLikeRequest, id: number) => {
      return Response.json([request.nextUrl, id])
    })
    expectTypeOf(next).toEqualTypeOf<ProtectedHandler<NextLikeRequest, [number]>>()
    const own = idempotency({
      store: memoryStore(),
      tenant: (request: NextLikeRequest) => request.nextUrl.host,
    })
    own.with({ operation: (request) => request.nextUrl.pathname })
    expectTypeOf(own).toEqualTypeOf<Protect<NextLikeRequest>>()
  })
})

describe('errors', () => {
  it.each([
    ['a plain error', new Error('plain'), 'ran'],
    ['the error of a lost call', new TypeError('fetch failed'), 'idempotency_outcome_unknown'],
  ])(
    'passes %s to the runtime, and its class decides about the key',
    async (_name, error, then) => {
      let runs = 0
      const handler = withIdempotency(() => {
        if (++runs === 1) throw error
        return Response.json({ code: 'ran' })
      }, optionsOf())

      await expect(handler(post())).rejects.toBe(error)
      expect(await (await handler(post())).json()).toMatchObject({ code: then })
    },
  )

  it('uses an error that a handler reports together with its 500', async () => {
    const handler = withIdempotency((request: Request) => {
      idempotencyOf(request).failed(new TypeError('fetch failed'))
      return new Response('sorry', { status: 500 })
    }, optionsOf())

    expect(await (await handler(post())).text()).toBe('sorry')
    expect((await handler(post())).status).toBe(409)
  })
})

describe('request bodies', () => {
  const echo = (options: Partial<IdempotencyOptions> = {}) =>
    withIdempotency(
      async (request: Request) => new Response(await request.text()),
      optionsOf(options),
    )

  it('treats an absent body and an empty body as the same', async () => {
    const handler = echo()
    expect((await handler(post(null))).status).toBe(200)
    const empty = await handler(post(new Uint8Array(0)))
    expect(empty.headers.get('idempotent-replayed')).toBe('true')
    const streamed = await handler(post(ReadableStream.from([]) as ReadableStream))
    expect(streamed.headers.get('idempotent-replayed')).toBe('true')
    expect((await handler(post(new Uint8Array(1)))).status).toBe(422)
  })

  it('passes a streamed body to the handler', async () => {
    const bytes = [new Uint8Array([1, 2]), new Uint8Array([3])]
    const reply = await echo()(post(ReadableStream.from(bytes) as ReadableStream))
    expect(new Uint8Array(await reply.arrayBuffer())).toEqual(new Uint8Array([1, 2, 3]))
  })

  it('rejects a request whose body was read or locked before the guard', async () => {
    const handler = echo()
    const used = post('x')
    await used.text()
    await expect(handler(used)).rejects.toThrow(/the body was read before idempotency/)
    const locked = post('x')
    locked.body?.getReader()
    await expect(handler(locked)).rejects.toThrow(/the body was read before idempotency/)
  })

  it('refuses a body that is too large without waiting for its end', async () => {
    const seen = unhandledRejections()
    let pulled = 0
    const endless = new ReadableStream({
      pull: (controller) => {
        pulled++
        controller.enqueue(new Uint8Array(10))
      },
    })
    const reply = await echo({ requestBytesMax: 100 })(post(endless))

    expect(reply.status).toBe(413)
    await turns()
    expect(pulled).toBeLessThan(20)
    expect(seen).toEqual([])
  })

  it('refuses a body whose Content-Length is too large without reading it', async () => {
    let pulled = 0
    const body = new ReadableStream({ pull: () => void pulled++ }, { highWaterMark: 0 })
    const reply = await echo({ requestBytesMax: 100 })(post(body, { 'content-length': '101' }))

    expect(reply.status).toBe(413)
    expect(pulled).toBe(0)
  })

  it('sends 413 over the wire for a body that is too large while more data arrives', async () => {
    const { connect, send } = await serveWeb(echo({ requestBytesMax: 1000 }))
    for (const headers of [{ 'Content-Length': 100_000 }, { 'Transfer-Encoding': 'chunked' }]) {
      const client = await connect({ key: 'k', headers })
      client.socket.write(`7d0\r\n${'x'.repeat(2000)}\r\n`)
      expect(await client.until(/\r\n\r\n/)).toMatch(/^HTTP\/1.1 413/)
      // If the guard had cancelled the body, this data would cause an uncaught error.
      client.socket.write(`7d0\r\n${'x'.repeat(2000)}\r\n`)
      await turns()
      client.cut()
    }
    expect((await send({ key: 'k', body: 'x'.repeat(1001) })).status).toBe(413)
    expect((await send({ key: 'k', body: 'x'.repeat(1000) })).status).toBe(200)
  })

  it('runs and records nothing if the client disconnects during its upload', async () => {
    const seen = unhandledRejections()
    let runs = 0
    const failed = gate<unknown>()
    const handler = withIdempotency(() => new Response(String(++runs)), optionsOf())
    const { connect, send } = await serveWeb(async (request) => {
      try {
        return await handler(request)
      } catch (error) {
        failed.open(error)
        throw error
      }
    })
    const client = await connect({ key: 'k', headers: { 'Content-Length': 10 }, body: 'half' })
    await turns()
    client.cut()

    expect(await failed.passed).toMatchObject({ message: 'request aborted', status: 400 })
    expect(runs).toBe(0)
    expect(text(await send({ key: 'k', body: 'whole' }))).toBe('1')
    expect(seen).toEqual([])
  })

  it('passes an error of the body stream to the runtime', async () => {
    const tooBig = new RangeError('over the limit of a middleware')
    const body = new ReadableStream({ pull: (controller) => controller.error(tooBig) })
    await expect(echo()(post(body))).rejects.toBe(tooBig)
  })

  it('compares multipart forms without their boundary', async () => {
    const handler = withIdempotency(
      async (request: Request) => new Response(/name="a"/.exec(await request.text())?.[0]),
      optionsOf(),
    )
    const form = (value: string) => {
      const data = new FormData()
      data.set('a', value)
      return post(data)
    }
    expect(await (await handler(form('1'))).text()).toBe('name="a"')
    expect((await handler(form('1'))).headers.get('idempotent-replayed')).toBe('true')
    expect((await handler(form('2'))).status).toBe(422)
  })
})

describe('over the wire', () => {
  it('refuses duplicates while the first request runs, and replays it afterwards', async () => {
    const entered = gate()
    const go = gate()
    let runs = 0
    const handler = withIdempotency(async () => {
      entered.open()
      await go.passed
      return Response.json({ run: ++runs })
    }, optionsOf())
    const { send, connect } = await serveWeb(handler)
    const client = await connect({ key: 'k' })
    await entered.passed
    expect(problemOf(await send({ key: 'k' }))).toEqual([409, 'idempotency_key_in_progress'])
    expect((await send({ key: 'k', body: 'other' })).status).toBe(422)
    client.cut()
    go.open()
    await turns()
    const retry = await send({ key: 'k' })
    expect([header(retry, 'idempotent-replayed'), json(retry)]).toEqual(['true', { run: 1 }])
  })

  it('protects with a separate engine for each request', async () => {
    const store = memoryStore()
    const [entered, go] = [gate(), gate()]
    const closed: Promise<unknown>[] = []
    let runs = 0
    // The same code as in the guide for Workers.
    const { send } = await serveWeb((request) => {
      const engine = createEngine({ store, sweepEveryMs: 0, reapEveryMs: 0 })
      const pay = async () => {
        entered.open()
        await go.passed
        return Response.json({ run: ++runs })
      }
      const handler = withIdempotency(pay, { engine, tenant: singleTenant, operation: 'pay' })
      const reply = handler(request)
      closed.push(reply.then(() => engine.close()))
      return reply
    })
    const first = send({ key: 'k' })
    await entered.passed
    expect((await send({ key: 'k' })).status).toBe(409)
    go.open()
    expect(json(await first)).toEqual({ run: 1 })
    expect(json(await send({ key: 'k' }))).toEqual({ run: 1 })
    await Promise.all(closed)
  })

  it('keeps the keys of two tenants apart', async () => {
    const handler = withIdempotency(
      (request: Request) => new Response(request.headers.get('x-account')),
      optionsOf({ tenant: (request) => request.headers.get('x-account') ?? '' }),
    )
    const { send } = await serveWeb(handler)
    expect(text(await send({ key: 'k', headers: { 'X-Account': 'a' } }))).toBe('a')
    expect(text(await send({ key: 'k', headers: { 'X-Account': 'b' } }))).toBe('b')
    expect((await send({ key: 'k' })).status).toBe(500)
  })

  it('returns 503 if the store fails, or runs the handler with onStoreFailure: open', async () => {
    const store = wrapStore(memoryStore(), { claim: () => Promise.reject(new Error('down')) })
    const handler = (options: Partial<IdempotencyOptions>) =>
      withIdempotency(
        async (request: Request) => {
          return new Response(await request.text())
        },
        optionsOf({ store, ...options }),
      )
    const closed = await serveWeb(handler({}))
    const open = await serveWeb(handler({ onStoreFailure: 'open' }))

    expect(problemOf(await closed.send({ key: 'k', body: 'x' }))).toEqual([
      503,
      'idempotency_store_unavailable',
    ])
    expect(text(await open.send({ key: 'k', body: 'x' }))).toBe('x')
  })
})
