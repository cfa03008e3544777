/** Responses of handlers: what is sent, what is recorded, and what a retry gets. */
import { describe, expect, it, onTestFinished } from 'vitest'
import { singleTenant } from '../../../src/http/guard/guard-options.ts'
import { currentIdempotency } from '../../../src/http/guard/current.ts'
import {
  idempotencyOf,
  withIdempotency,
  type IdempotencyOptions,
} from '../../../src/adapters/fetch/index.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { sqliteStore, type SqliteTransaction } from '../../../src/stores/sqlite/index.ts'
import { FakeClock } from '../../../src/testing/index.ts'
import { scratchFolder } from '../../stores/scratch-folder.ts'
import { gate, header, turns, wrapStore } from '../run-express.ts'
import { serveWeb } from '../web/serve-web.ts'

const optionsOf = (options: Partial<IdempotencyOptions> = {}): IdempotencyOptions => ({
  tenant: singleTenant,
  store: memoryStore(),
  replyBytesMax: 1000,
  ...options,
})

const post = (key = 'k') =>
  new Request('http://localhost/', { method: 'POST', headers: { 'idempotency-key': key } })

/** Sends a request and its retry. The handler must run once. */
async function twice(respond: () => Response | Promise<Response>, options = optionsOf()) {
  let runs = 0
  const handler = withIdempotency(() => {
    runs++
    return respond()
  }, options)
  const first = await handler(post())
  const firstBody = new Uint8Array(await first.arrayBuffer())
  const retry = await handler(post())
  const retryBody = new Uint8Array(await retry.arrayBuffer())
  expect(runs).toBe(1)
  expect(retry.status).toBe(first.status)
  expect(first.headers.get('idempotency-expires')).toBe(retry.headers.get('idempotency-expires'))
  expect(retry.headers.get('idempotent-replayed')).toBe('true')
  return { first, firstBody, retry, retryBody }
}

/** A stream that produces its chunks on demand, and reports when it is cancelled. */
function source(chunks: readonly (Uint8Array | string | Error)[], end?: 'stays open') {
  const cancelled = gate<unknown>()
  let pulled = 0
  const stream = new ReadableStream(
    {
      async pull(controller) {
        const chunk = chunks[pulled++]
        if (chunk instanceof Error) controller.error(chunk)
        else if (chunk !== undefined) controller.enqueue(chunk)
        else if (end === undefined) controller.close()
        else await new Promise(() => undefined)
      },
      cancel: (reason) => cancelled.open(reason),
    },
    { highWaterMark: 0 },
  )
  return { stream, cancelled: cancelled.passed, pulled: () => pulled }
}

const bytes = (length: number) => new Uint8Array(length).fill(7)

describe('responses', () => {
  it.each([
    ['text', () => new Response('grüezi', { status: 201 })],
    ['JSON', () => Response.json({ a: 1 }, { status: 202 })],
    ['bytes', () => new Response(new Uint8Array([0, 255, 10, 13, 128]))],
    ['a blob', () => new Response(new Blob(['x'], { type: 'image/png' }))],
    ['a stream', () => new Response(source([bytes(3), bytes(0), bytes(2)]).stream)],
    ['a stream of text', () => new Response(source(['a', 'b']).stream)],
    ['an error', () => new Response('no', { status: 404 })],
  ])('replays a response of %s byte by byte', async (_kind, respond) => {
    const { first, firstBody, retry, retryBody } = await twice(respond)
    expect(firstBody.length).toBeGreaterThan(0)
    expect(retryBody).toEqual(firstBody)
    expect(retry.headers.get('content-type')).toBe(first.headers.get('content-type'))
  })

  it.each([200, 204, 205, 304])('sends and replays a %i without a body', async (status) => {
    const { first, retry } = await twice(() => new Response(null, { status }))
    expect([first.status, first.body, retry.body]).toEqual([status, null, null])
  })

  it('replays a response with an empty body', async () => {
    const { firstBody, retryBody, retry } = await twice(() => new Response(''))
    expect([firstBody.length, retryBody.length]).toEqual([0, 0])
    expect(retry.headers.get('content-type')).toMatch(/text\/plain/)
  })

  it('replays the Location of a redirect, whose headers are immutable', async () => {
    const { first, retry } = await twice(() => Response.redirect('http://localhost/there', 303))
    expect([first.status, first.headers.get('location')]).toEqual([303, 'http://localhost/there'])
    expect(retry.headers.get('location')).toBe('http://localhost/there')
  })

  it('sends cookies and the status text with the first reply, but not with a replay', async () => {
    const { first, retry } = await twice(() => {
      const headers = new Headers({ 'X-Own': 'yes' })
      headers.append('Set-Cookie', 'a=1; Path=/, x')
      headers.append('Set-Cookie', 'b=2')
      return new Response('x', { headers, status: 200, statusText: 'Fine' })
    })
    expect(first.headers.getSetCookie()).toEqual(['a=1; Path=/, x', 'b=2'])
    expect([first.statusText, first.headers.get('x-own')]).toEqual(['Fine', 'yes'])
    expect(retry.headers.getSetCookie()).toEqual([])
  })

  it('removes Transfer-Encoding from a response that was buffered', async () => {
    const { first } = await twice(
      () => new Response('x', { headers: { 'Transfer-Encoding': 'chunked' } }),
    )
    expect(first.headers.has('transfer-encoding')).toBe(false)
  })
})

describe('handlers without a valid response', () => {
  const upgrade = Object.defineProperty(new Response(null), 'status', { value: 101 })
  const used = async () => {
    const response = new Response('x')
    await response.text()
    return response
  }
  const locked = () => {
    const response = new Response('x')
    response.body?.getReader()
    return response
  }
  it.each([
    ['nothing', () => undefined as never, /must return a Response.*got nothing/],
    ['another object', () => ({ a: 1 }) as never, /must return a Response.*got no Resp/],
    ['plain data', () => ({ status: 201, body: 'x' }) as never, /got no Response/],
    ['Response.error()', () => Response.error(), /got Response\.error\(\)/],
    ['an upgrade', () => upgrade, /an upgrade \(101\).* leave its route unprotected/],
    ['a response that was read', used, /body was read already/],
    ['a response that is locked', locked, /body was read already/],
  ])(
    'rejects a handler that returns %s, and does not run it again',
    async (_what, respond, message) => {
      let runs = 0
      const handler = withIdempotency(() => {
        runs++
        return respond()
      }, optionsOf())
      await expect(handler(post())).rejects.toThrow(message)
      expect(await (await handler(post())).json()).toMatchObject({
        code: 'idempotency_outcome_unknown',
      })
      expect(runs).toBe(1)
    },
  )
})

describe('responses above the cap', () => {
  it('records a response above the cap before it sends bytes, then streams on demand', async () => {
    const { stream, pulled } = source(Array.from({ length: 50 }, () => bytes(100)))
    const recorded: unknown[] = []
    const store = memoryStore()
    const watched = wrapStore(store, {
      settle: (settlements) => {
        recorded.push(pulled())
        return store.settle(settlements)
      },
    })
    const handler = withIdempotency(
      () => new Response(stream, { status: 201 }),
      optionsOf({ store: watched }),
    )
    const first = await handler(post())
    expect(recorded).toEqual([11])
    await turns()
    expect(pulled()).toBe(11)
    const reader = first.body!.getReader()
    for (let i = 0; i < 12; i++) await reader.read()
    expect(pulled()).toBe(12)

    const retry = await handler(post())
    expect(retry.status).toBe(201)
    expect(retry.headers.get('idempotent-body-elided')).toBe('true')
    let rest = 0
    for (let next = await reader.read(); !next.done; next = await reader.read()) rest++
    expect(rest).toBe(38)
  })

  it('cancels the source of a response above the cap when its reader cancels', async () => {
    const { stream, cancelled } = source(Array.from({ length: 50 }, () => bytes(100)))
    const handler = withIdempotency(() => new Response(stream), optionsOf())
    await (await handler(post())).body!.cancel('enough')
    expect(await cancelled).toBe('enough')
  })

  it('cancels the source of a response above the cap when the client disconnects', async () => {
    const { stream, cancelled } = source(
      Array.from({ length: 20 }, () => bytes(100)),
      'stays open',
    )
    const { connect } = await serveWeb(withIdempotency(() => new Response(stream), optionsOf()))
    const client = await connect({ key: 'k' })
    await client.until(/200 OK/)
    client.cut()
    await cancelled
  })

  it('keeps the record of a response above the cap whose stream fails later', async () => {
    const chunks = [...Array.from({ length: 20 }, () => bytes(100)), new Error('disk')]
    const handler = withIdempotency(() => new Response(source(chunks).stream), optionsOf())
    await expect((await handler(post())).arrayBuffer()).rejects.toThrow('disk')
    expect((await handler(post())).headers.get('idempotent-replayed')).toBe('true')
  })

  it('cancels the source of a response above the cap when another reply is sent', async () => {
    const { stream, cancelled } = source(Array.from({ length: 50 }, () => bytes(100)))
    const store = wrapStore(memoryStore(), { settle: () => Promise.reject(new Error('down')) })
    const handler = withIdempotency(
      () => new Response(stream),
      optionsOf({ store, settleTimeoutMs: 1 }),
    )
    onTestFinished(async () => void (await handler.engine.close({ graceMs: 0 })))
    expect((await handler(post())).status).toBe(503)
    await cancelled
  })
})

describe('streams that fail below the cap', () => {
  it('treats a stream that fails below the cap as an error of the handler', async () => {
    const broken = () => new Response(source([bytes(10), new Error('disk')]).stream)
    let runs = 0
    const handler = withIdempotency(() => {
      return ++runs === 1 ? broken() : new Response('fine')
    }, optionsOf())
    await expect(handler(post())).rejects.toThrow('disk')
    expect(await (await handler(post())).text()).toBe('fine')
  })
})

describe('streams of other values than bytes', () => {
  it('rejects and cancels a stream with a chunk that is neither bytes nor text', async () => {
    const { stream, cancelled } = source([bytes(10), 7 as never, bytes(10)])
    const handler = withIdempotency(() => new Response(stream), optionsOf())
    await expect(handler(post())).rejects.toThrow(/stream of bytes/)
    await cancelled
  })

  it('cancels a stream whose invalid chunk comes after the cap', async () => {
    const { stream, cancelled } = source([bytes(2000), 7 as never])
    const handler = withIdempotency(() => new Response(stream), optionsOf())
    await expect((await handler(post())).arrayBuffer()).rejects.toThrow(/stream of bytes/)
    await cancelled
  })
})

describe('streams that are produced after the handler has returned', () => {
  it('holds the key while the stream of a response is produced', async () => {
    const seen: unknown[] = []
    const handler = withIdempotency(() => {
      const stream = new ReadableStream({
        async pull(controller) {
          await turns(1)
          currentIdempotency().assertHeld()
          seen.push(currentIdempotency().key)
          controller.close()
        },
      })
      return new Response(stream)
    }, optionsOf())
    await handler(post())
    expect(seen).toEqual(['k'])
  })
})

describe('runTimeoutMs', () => {
  it('answers when the handler runs too long, and keeps its late reply for the retry', async () => {
    const clock = new FakeClock()
    const engine = createEngine({ store: memoryStore({ clock }), clock, sweepEveryMs: 0 })
    const entered = gate()
    const go = gate()
    const { stream, cancelled } = source(Array.from({ length: 50 }, () => bytes(100)))
    const options = { engine, tenant: singleTenant, replyBytesMax: 1000, runTimeoutMs: 60_000 }
    const handler = withIdempotency(async (request: Request) => {
      entered.open()
      await go.passed
      return new Response(request.headers.get('idempotency-key') === 'k' ? 'late' : stream)
    }, options)
    const replies = [handler(post('k')), handler(post('large'))]
    await entered.passed
    await turns()
    clock.advance(60_000)
    for (const reply of replies) expect((await reply).status).toBe(409)
    go.open()
    // The rest of the response above the cap is not sent to any client.
    await cancelled
    await turns()
    expect(await (await handler(post('k'))).text()).toBe('late')
    expect((await handler(post('large'))).headers.get('idempotent-body-elided')).toBe('true')
  })
})

describe('streams of events', () => {
  it('sends a stream of events at once, and records it without its body', async () => {
    const go = gate()
    const events = ReadableStream.from(
      (async function* () {
        yield 'data: one\n\n'
        await go.passed
        yield 'data: two\n\n'
      })(),
    )
    const headers = { 'Content-Type': 'text/event-stream; charset=utf-8' }
    const handler = withIdempotency(
      () => new Response(events as ReadableStream, { headers }),
      optionsOf(),
    )
    const { connect, send } = await serveWeb(handler)
    const client = await connect({ key: 'k' })
    expect(await client.until(/data: one/)).toMatch(/data: one/)
    expect(header(await send({ key: 'k' }), 'idempotent-body-elided')).toBe('true')
    go.open()
    expect(await client.until(/data: two/)).toMatch(/data: two/)
  })
})

describe('transactions', () => {
  function setup(respond: (request: Request) => Promise<Response | void>) {
    const folder = scratchFolder()
    const store = sqliteStore({ path: folder.file('keys.db') })
    onTestFinished(async () => {
      await store.close()
      folder.remove()
    })
    return withIdempotency(respond as (request: Request) => Promise<Response>, optionsOf({ store }))
  }
  const insert = (tx: SqliteTransaction) => {
    tx.exec('CREATE TABLE IF NOT EXISTS orders (id TEXT)')
    tx.prepare('INSERT INTO orders VALUES (?)').run('o')
    return Number(tx.prepare('SELECT count(*) AS n FROM orders').get()?.['n'])
  }

  it('commits the response of a transaction, and replays it without its cookies', async () => {
    const handler = setup((request) =>
      idempotencyOf(request).transaction(async (tx: SqliteTransaction) => {
        const headers = { 'Set-Cookie': 'a=1', Location: '/o' }
        return Response.json({ orders: insert(tx) }, { status: 201, headers })
      }),
    )
    const first = await handler(post())
    expect([first.status, await first.json()]).toEqual([201, { orders: 1 }])
    expect([first.headers.getSetCookie(), first.headers.get('location')]).toEqual([['a=1'], '/o'])
    const retry = await handler(post())
    expect([retry.status, await retry.json()]).toEqual([201, { orders: 1 }])
    expect([retry.headers.getSetCookie(), retry.headers.get('location')]).toEqual([[], '/o'])
  })

  it('sends the response of a transaction, not the later result of its handler', async () => {
    const ends = [
      () => undefined,
      () => new Response('another'),
      () => {
        throw new Error('too late')
      },
    ]
    for (const [index, end] of ends.entries()) {
      const handler = setup(async (request) => {
        await idempotencyOf(request).transaction(() => new Response('committed'))
        return end()
      })
      expect(await (await handler(post(`k${index}`))).text()).toBe('committed')
      expect(await (await handler(post(`k${index}`))).text()).toBe('committed')
    }
  })

  it('cancels a stream that the handler returns after its transaction', async () => {
    const { stream, cancelled } = source(Array.from({ length: 50 }, () => bytes(100)))
    const go = gate()
    const handler = setup(async (request) => {
      await idempotencyOf(request).transaction(() => new Response('committed'))
      await go.passed
      return new Response(stream)
    })
    expect(await (await handler(post())).text()).toBe('committed')
    go.open()
    await cancelled
  })

  it('commits a response above the cap, and streams the rest', async () => {
    const { stream } = source(Array.from({ length: 50 }, () => bytes(100)))
    const handler = setup((request) =>
      idempotencyOf(request).transaction(() => new Response(stream)),
    )
    expect((await (await handler(post())).arrayBuffer()).byteLength).toBe(5000)
    expect((await handler(post())).headers.get('idempotent-body-elided')).toBe('true')
  })

  it('records the response of a handler that catches the error of its transaction', async () => {
    const handler = setup(async (request) => {
      try {
        return await idempotencyOf(request).transaction((tx: SqliteTransaction) => {
          insert(tx)
          if (request.headers.has('x')) return new Response('never')
          throw new Error('no stock')
        })
      } catch {
        return new Response('sold out', { status: 409 })
      }
    })
    const first = await handler(post())
    expect([first.status, await first.text()]).toEqual([409, 'sold out'])
    expect(await (await handler(post())).text()).toBe('sold out')
  })

  it('sends the response of the handler if a transaction that was not awaited fails', async () => {
    const go = gate()
    const handler = setup(async (request) => {
      const transaction = idempotencyOf(request).transaction(async () => {
        await go.passed
        throw new Error('too late')
      })
      transaction.catch(() => undefined)
      setImmediate(() => go.open())
      return new Response('own', { status: 409 })
    })
    expect(await (await handler(post())).text()).toBe('own')
  })

  it('does not send the response of a transaction whose commit fails', async () => {
    let runs = 0
    const handler = setup(async (request) => {
      runs++
      try {
        return await idempotencyOf(request).transaction((tx: SqliteTransaction) => {
          tx.exec('CREATE TABLE IF NOT EXISTS parent (id TEXT PRIMARY KEY)')
          const reference = 'REFERENCES parent DEFERRABLE INITIALLY DEFERRED'
          tx.exec(`CREATE TABLE IF NOT EXISTS child (id TEXT ${reference})`)
          tx.exec("INSERT INTO child VALUES ('none')")
          return new Response('committed', { status: 201 })
        })
      } catch (error) {
        return new Response(String(error), { status: 500 })
      }
    })
    const reply = await handler(post())
    expect(reply.status).not.toBe(201)
    expect(await reply.text()).not.toBe('committed')
    expect(runs).toBe(1)
  })
})
