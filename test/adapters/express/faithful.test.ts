import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type { Request, Response } from 'express'
import { describe, expect, it, onTestFinished } from 'vitest'
import { STORED_HEADERS_DEFAULT } from '../../../src/http/reply/stored-headers.ts'
import { scratchFolder } from '../../stores/scratch-folder.ts'
import {
  EXPRESSES,
  caught,
  guardOf,
  header,
  serve,
  type ExpressModule,
  type Reply,
} from '../run-express.ts'

type Handler = (req: Request, res: Response) => unknown

/** Serves the same handler twice: without the guard, and behind it. */
async function setup(express: ExpressModule, handler: Handler) {
  const app = express()
  let runs = 0
  const counted = caught((req, res) => {
    runs++
    return handler(req, res)
  })
  app.post('/plain', caught(handler))
  app.post('/guarded', guardOf(), counted)
  const { send } = await serve(app)
  return {
    plain: () => send({ path: '/plain' }),
    guarded: () => send({ path: '/guarded', key: 'k-1' }),
    runs: () => runs,
  }
}

/** Headers that differ between messages, or that Node sets for the framing. */
const FRAMING = ['date', 'connection', 'keep-alive', 'transfer-encoding', 'content-length']
const OURS = ['idempotency-expires', 'idempotent-replayed']

const without = (reply: Reply, names: readonly string[]) =>
  Object.fromEntries([...reply.headers].filter(([name]) => !names.includes(name)))

const stored = (reply: Reply) =>
  Object.fromEntries([...reply.headers].filter(([name]) => STORED_HEADERS_DEFAULT.includes(name)))

const ALL_BYTES = Buffer.from(Array.from({ length: 256 }, (_, n) => n))

const HANDLERS: Readonly<Record<string, Handler>> = {
  'res.json': (_req, res) => res.status(201).json({ id: 'pay_1', amount: 5 }),
  'res.json of null': (_req, res) => res.json(null),
  'res.jsonp': (_req, res) => res.jsonp({ id: 1 }),
  'res.send of a string': (_req, res) => res.send('Grüße'),
  'res.send of a Buffer': (_req, res) => res.send(ALL_BYTES),
  'res.send of an object': (_req, res) => res.send({ ok: true }),
  'res.send of nothing': (_req, res) => res.send(),
  'res.type and res.send': (_req, res) => res.type('text/csv').send('a,b\n'),
  'all 256 bytes': (_req, res) => res.end(ALL_BYTES),
  'an empty 200': (_req, res) => res.end(),
  '204': (_req, res) => res.status(204).end(),
  '205': (_req, res) => res.status(205).send('dropped'),
  'res.sendStatus': (_req, res) => res.sendStatus(202),
  'res.redirect': (_req, res) => res.redirect(303, '/payments/1'),
  '404 as JSON': (_req, res) => res.status(404).json({ error: 'no such account' }),
  'a custom status message': (_req, res) => {
    res.statusMessage = 'Made It'
    res.status(201).json({})
  },
  'several Link headers': (_req, res) =>
    res.append('Link', '</a>; rel="a"').append('Link', '</b>; rel="b"').json({}),
  'res.vary and res.location': (_req, res) => res.vary('Accept').location('/p/1').json({}),
  'write and end in pieces': (_req, res) => {
    res.write('one ')
    res.write(Buffer.from('two '))
    res.write('dGhyZWU=', 'base64')
    res.end(' four')
  },
  'pieces in a reused buffer': async (_req, res) => {
    const buffer = Buffer.alloc(4)
    for (const piece of ['one ', 'two ', 'last']) {
      buffer.write(piece)
      await new Promise<void>((resolve) => {
        res.write(buffer, () => resolve())
      })
    }
    buffer.fill(0)
    res.end()
  },
  'pieces over several turns': async (_req, res) => {
    for (const piece of ['a', 'b', 'c']) {
      res.write(piece)
      await Promise.resolve()
    }
    res.end()
  },
  'flushHeaders, then a body': (_req, res) => {
    res.setHeader('Content-Type', 'text/plain')
    res.flushHeaders()
    res.end('late')
  },
  'writeHead with an object': (_req, res) =>
    res.writeHead(201, { 'Content-Type': 'text/plain', ETag: '"1"' }).end('made'),
  'writeHead with a reason': (_req, res) =>
    res.writeHead(201, 'Very Created', { 'Content-Type': 'text/plain' }).end('made'),
  'writeHead with a flat list': (_req, res) =>
    res.writeHead(200, ['Link', '</a>', 'Link', '</b>', 'ETag', '"2"']).end('flat'),
  'writeHead over a header set before': (_req, res) => {
    res.setHeader('ETag', '"old"')
    res.writeHead(200, ['ETag', '"new"']).end()
  },
  'an explicit length': (_req, res) => {
    res.setHeader('Content-Length', '5')
    res.end('12345')
  },
  trailers: (_req, res) => {
    res.setHeader('Trailer', 'X-Sum')
    res.write('body')
    res.addTrailers({ 'X-Sum': '42' })
    res.end()
  },
  'Readable.pipe': (_req, res) => Readable.from([Buffer.from('a'), ALL_BYTES]).pipe(res),
  'stream.pipeline': (_req, res) => pipeline(Readable.from(['x', 'y', 'z']), res),
}

describe.each(EXPRESSES)('%s: a reply behind the guard', (_name, express) => {
  it.each(Object.entries(HANDLERS))('sends and replays %s unchanged', async (_what, handler) => {
    const { plain, guarded, runs } = await setup(express, handler)
    const expected = await plain()
    const first = await guarded()
    expect(first.status).toBe(expected.status)
    expect(first.message).toBe(expected.message)
    expect(first.body).toEqual(expected.body)
    expect(without(first, [...FRAMING, ...OURS])).toEqual(without(expected, FRAMING))
    expect(first.headers.has('idempotent-replayed')).toBe(false)

    const replay = await guarded()
    expect(replay.status).toBe(expected.status)
    expect(replay.body).toEqual(expected.body)
    expect(stored(replay)).toEqual(stored(expected))
    expect(header(replay, 'idempotent-replayed')).toBe('true')
    expect(header(replay, 'idempotency-expires')).toBe(header(first, 'idempotency-expires'))
    expect(new Date(header(replay, 'idempotency-expires')!).getTime()).not.toBeNaN()
    expect(runs()).toBe(1)
  })

  it('sends and replays a file', async () => {
    const folder = scratchFolder()
    onTestFinished(folder.remove)
    const file = folder.file('receipt.bin')
    writeFileSync(file, Buffer.concat([ALL_BYTES, ALL_BYTES]))
    for (const way of [
      (_req: Request, res: Response) => res.sendFile(file),
      (_req: Request, res: Response) => res.download(file, 'receipt.bin'),
    ]) {
      const { plain, guarded, runs } = await setup(express, way)
      const expected = await plain()
      const first = await guarded()
      const replay = await guarded()
      expect(first.body).toEqual(expected.body)
      expect(replay.body).toEqual(expected.body)
      expect(without(first, [...FRAMING, ...OURS])).toEqual(without(expected, FRAMING))
      expect(stored(replay)).toEqual(stored(expected))
      expect(runs()).toBe(1)
    }
  })

  it('sends Set-Cookie with the first reply only', async () => {
    const { guarded } = await setup(express, (_req, res) => res.cookie('sid', 'secret').json({}))
    expect(header(await guarded(), 'set-cookie')).toContain('sid=secret')
    expect((await guarded()).headers.has('set-cookie')).toBe(false)
  })

  it('runs the write callbacks and emits finish once the reply is sent', async () => {
    const order: string[] = []
    const { guarded } = await setup(express, async (_req, res) => {
      res.on('finish', () => order.push(`finish, ${String(res.writableFinished)}`))
      await new Promise<void>((resolve) => {
        res.write('a', () => order.push('written'))
        res.end('b', () => resolve())
        order.push(`ended: ${String(res.writableEnded)}, sent: ${String(res.headersSent)}`)
      })
      order.push('called back')
    })
    expect((await guarded()).body.toString()).toBe('ab')
    expect(order[0]).toBe('ended: true, sent: true')
    expect(order.slice(1).sort()).toEqual(['called back', 'finish, true', 'written'])
  })

  it('throws the same errors for wrong calls as a response without the guard', async () => {
    const codes: unknown[] = []
    const attempt = (run: () => unknown) => {
      try {
        run()
        codes.push('allowed')
      } catch (error) {
        codes.push((error as { code?: unknown }).code)
      }
    }
    const handler: Handler = async (_req, res) => {
      attempt(() => res.writeHead(42))
      attempt(() => res.write({}))
      res.write('begun')
      attempt(() => res.setHeader('X-Late', '1'))
      attempt(() => res.removeHeader('X-Late'))
      attempt(() => res.writeHead(200))
      res.on('error', () => undefined)
      res.end()
      const error = await new Promise((resolve) => {
        res.write('after the end', resolve)
      })
      codes.push((error as { code?: unknown }).code)
    }
    const { plain, guarded } = await setup(express, handler)
    await plain()
    const expected = codes.splice(0)
    await guarded()
    expect(codes).toEqual(expected)
  })

  it('passes an invalid status to the error handler, as Express does', async () => {
    const { plain, guarded } = await setup(express, (_req, res) => {
      res.statusCode = 1000
      res.end('x')
    })
    expect((await plain()).status).toBe(500)
    expect((await guarded()).status).toBe(500)
  })

  // Compression, session and response-time middleware wraps a response in this way.
  it('supports middleware behind the guard that wraps the response', async () => {
    const app = express()
    const store = { replyBytesMax: 8 }
    app.post('/', guardOf(store), (_req, res, next) => {
      const { write, end, writeHead } = res
      Object.assign(res, {
        write: (chunk: string) => write.call(res, chunk.toUpperCase(), 'utf8'),
        end: (chunk?: string) => end.call(res, chunk?.toUpperCase() ?? '', 'utf8'),
        writeHead: (...args: Parameters<typeof writeHead>) => {
          res.setHeader('ETag', '"from-write-head"')
          return writeHead.apply(res, args)
        },
      })
      next()
    })
    app.post('/', async (_req, res) => {
      res.write('small')
      if (_req.query['large'] !== undefined) {
        if (!res.write(', then large')) await once(res, 'drain')
        res.write(', then the rest')
      }
      res.end('.')
    })
    const { send } = await serve(app)
    const small = await send({ key: 'small' })
    expect(small.body.toString()).toBe('SMALL.')
    expect(header(small, 'etag')).toBe('"from-write-head"')
    expect(header(await send({ key: 'small' }), 'etag')).toBe('"from-write-head"')
    const large = await send({ key: 'large', path: '/?large' })
    expect(large.body.toString()).toBe('SMALL, THEN LARGE, THEN THE REST.')
  })

  it.each(['GET', 'HEAD', 'OPTIONS', 'PUT', 'DELETE'])(
    'passes %s requests through unchanged',
    async (method) => {
      const app = express()
      const seen: unknown[] = []
      app.use(guardOf(), (req, res) => {
        seen.push(req.idempotency)
        res.json({ method: req.method })
      })
      const { send } = await serve(app)
      for (const key of [undefined, 'k', '"broken']) {
        const reply = await send({ method, ...(key === undefined ? {} : { key }) })
        expect(reply.status).toBe(200)
        expect(reply.headers.has('idempotency-expires')).toBe(false)
      }
      expect(seen).toEqual([undefined, undefined, undefined])
    },
  )

  it('keeps the headers of middleware before the guard, also in a replay', async () => {
    const app = express()
    app.use((_req, res, next) => {
      res.setHeader('Access-Control-Allow-Origin', 'https://example.org')
      next()
    })
    app.post('/', guardOf(), (_req, res) => res.json({}))
    const { send } = await serve(app)
    for (let n = 0; n < 2; n++) {
      const reply = await send({ key: 'k' })
      expect(header(reply, 'access-control-allow-origin')).toBe('https://example.org')
    }
  })
})
