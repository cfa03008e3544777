/** Every kind of response a handler can return: what leaves, what is kept, what a retry gets. */
import { describe, expect, it, onTestFinished } from 'vitest'
import {
  currentIdempotency,
  idempotencyOf,
  singleTenant,
  withIdempotency,
  type FetchOptions,
} from '../../src/adapters/fetch.ts'
import { createEngine } from '../../src/core/engine.ts'
import { memoryStore } from '../../src/stores/memory/memory-store.ts'
import { sqliteStore, type SqliteTransaction } from '../../src/stores/sqlite/index.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { scratchFolder } from '../stores/scratch-folder.ts'
import { gate, header, turns, wrapStore } from './run-express.ts'
import { serveWeb } from './serve-web.ts'

const optionsOf = (options: Partial<FetchOptions> = {}): FetchOptions => ({
  tenant: singleTenant,
  store: memoryStore(),
  replyBytesMax: 1000,
  ...options,
})

const post = (key = 'k') =>
  new Request('http://localhost/', { method: 'POST', headers: { 'idempotency-key': key } })

/** The first reply and its replay; the handler runs once. */
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

/** Chunks that come when asked for, and know when they are wanted no more. */
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

describe('a response', () => {
  it.each([
    ['text', () => new Response('grüezi', { status: 201 })],
    ['JSON', () => Response.json({ a: 1 }, { status: 202 })],
    ['bytes', () => new Response(new Uint8Array([0, 255, 10, 13, 128]))],
    ['a blob', () => new Response(new Blob(['x'], { type: 'image/png' }))],
    ['a stream', () => new Response(source([bytes(3), bytes(0), bytes(2)]).stream)],
    ['a stream of text', () => new Response(source(['a', 'b']).stream)],
    ['an error', () => new Response('no', { status: 404 })],
  ])('of %s is replayed byte by byte', async (_kind, respond) => {
    const { first, firstBody, retry, retryBody } = await twice(respond)
    expect(firstBody.length).toBeGreaterThan(0)
    expect(retryBody).toEqual(firstBody)
    expect(retry.headers.get('content-type')).toBe(first.headers.get('content-type'))
  })

  it.each([200, 204, 205, 304])('of status %i without a body has none again', async (status) => {
    const { first, retry } = await twice(() => new Response(null, { status }))
    expect([first.status, first.body, retry.body]).toEqual([status, null, null])
  })

  it('of no bytes is replayed as such', async () => {
    const { firstBody, retryBody, retry } = await twice(() => new Response(''))
    expect([firstBody.length, retryBody.length]).toEqual([0, 0])
    expect(retry.headers.get('content-type')).toMatch(/text\/plain/)
  })

  it('that redirects keeps its place, although its headers cannot be changed', async () => {
    const { first, retry } = await twice(() => Response.redirect('http://localhost/there', 303))
    expect([first.status, first.headers.get('location')]).toEqual([303, 'http://localhost/there'])
    expect(retry.headers.get('location')).toBe('http://localhost/there')
  })

  it('keeps its cookies and its status text when it is first sent, and only then', async () => {
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

  it('that is whole does not say that it comes in pieces', async () => {
    const { first } = await twice(
      () => new Response('x', { headers: { 'Transfer-Encoding': 'chunked' } }),
    )
    expect(first.headers.has('transfer-encoding')).toBe(false)
  })
})

describe('a handler without a response', () => {
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
    ['returns nothing', () => undefined as never, /must return a Response.*got nothing/],
    ['returns something else', () => ({ a: 1 }) as never, /must return a Response.*got no Resp/],
    ['returns plain data', () => ({ status: 201, body: 'x' }) as never, /got no Response/],
    ['returns Response.error()', () => Response.error(), /got Response\.error\(\)/],
    ['upgrades', () => upgrade, /an upgrade \(101\).* leave its route unprotected/],
    ['returns one that was read', used, /body was read already/],
    ['returns one that is being read', locked, /body was read already/],
  ])('fails when it %s, and is not run again', async (_how, respond, message) => {
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
  })
})

describe('a response above the cap', () => {
  it('is recorded before its first byte leaves, and then flows as it is read', async () => {
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

  it('is cancelled with its reader', async () => {
    const { stream, cancelled } = source(Array.from({ length: 50 }, () => bytes(100)))
    const handler = withIdempotency(() => new Response(stream), optionsOf())
    await (await handler(post())).body!.cancel('enough')
    expect(await cancelled).toBe('enough')
  })

  it('is cancelled when its client leaves', async () => {
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

  it('that fails later fails its reader, and stays recorded', async () => {
    const chunks = [...Array.from({ length: 20 }, () => bytes(100)), new Error('disk')]
    const handler = withIdempotency(() => new Response(source(chunks).stream), optionsOf())
    await expect((await handler(post())).arrayBuffer()).rejects.toThrow('disk')
    expect((await handler(post())).headers.get('idempotent-replayed')).toBe('true')
  })

  it('is given up when another reply leaves in its place', async () => {
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

describe('a response that fails before the cap', () => {
  it('is the error of its handler', async () => {
    const broken = () => new Response(source([bytes(10), new Error('disk')]).stream)
    let runs = 0
    const handler = withIdempotency(() => {
      return ++runs === 1 ? broken() : new Response('fine')
    }, optionsOf())
    await expect(handler(post())).rejects.toThrow('disk')
    expect(await (await handler(post())).text()).toBe('fine')
  })
})

describe('a body that is no stream of bytes', () => {
  it('is the error of its handler, and is given up', async () => {
    const { stream, cancelled } = source([bytes(10), 7 as never, bytes(10)])
    const handler = withIdempotency(() => new Response(stream), optionsOf())
    await expect(handler(post())).rejects.toThrow(/stream of bytes/)
    await cancelled
  })

  it('is given up where it is found above the cap, too', async () => {
    const { stream, cancelled } = source([bytes(2000), 7 as never])
    const handler = withIdempotency(() => new Response(stream), optionsOf())
    await expect((await handler(post())).arrayBuffer()).rejects.toThrow(/stream of bytes/)
    await cancelled
  })
})

describe('a stream that is produced after its handler has returned', () => {
  it('still holds the key, and knows it', async () => {
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

describe('a handler that runs for longer than it may', () => {
  it('is answered for, and what it brings in the end is kept for its retry', async () => {
    const clock = new FakeClock()
    const engine = createEngine({ store: memoryStore({ clock }), clock, sweepEveryMs: 0 })
    const entered = gate()
    const go = gate()
    const { stream, cancelled } = source(Array.from({ length: 50 }, () => bytes(100)))
    const options = { engine, tenant: singleTenant, replyBytesMax: 1000, maxRunMs: 60_000 }
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
    // Nobody reads the rest of what is too large to be kept.
    await cancelled
    await turns()
    expect(await (await handler(post('k'))).text()).toBe('late')
    expect((await handler(post('large'))).headers.get('idempotent-body-elided')).toBe('true')
  })
})

describe('a stream of events', () => {
  it('leaves at once, recorded without its body', async () => {
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

describe('a transaction', () => {
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

  it('commits its response, which leaves with its cookies and is replayed without', async () => {
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

  it('is what leaves, whatever its handler does afterwards', async () => {
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

  it('gives up what its handler returns afterwards', async () => {
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

  it('may commit a response above the cap, of which the rest flows', async () => {
    const { stream } = source(Array.from({ length: 50 }, () => bytes(100)))
    const handler = setup((request) =>
      idempotencyOf(request).transaction(() => new Response(stream)),
    )
    expect((await (await handler(post())).arrayBuffer()).byteLength).toBe(5000)
    expect((await handler(post())).headers.get('idempotent-body-elided')).toBe('true')
  })

  it('that fails leaves the word to its handler', async () => {
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

  it('that nobody waits for leaves the word to its handler when it fails', async () => {
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

  it('whose commit fails takes its response back', async () => {
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
