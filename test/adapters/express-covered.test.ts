import type { RequestHandler, Response } from 'express'
import { describe, expect, it } from 'vitest'
import { EXPRESSES, guardOf, header, serve, type ExpressModule, type Reply } from './run-express.ts'

/** What somebody has made of a response before the guard holds it. */
const BEFORE: Readonly<Record<string, (res: Response) => void>> = {
  'nobody has touched': () => undefined,
  'has a wrapped end': (res) => {
    const end = res.end.bind(res) as (...args: unknown[]) => Response
    res.end = (...args: unknown[]) => {
      res.locals['ended'] = true
      return end(...args)
    }
  },
  'shows its end by an accessor': (res) => {
    const { end } = res
    Object.defineProperty(res, 'end', { configurable: true, get: () => end })
  },
  'has a write that cannot be set': (res) => {
    const { write } = res
    Object.defineProperty(res, 'write', { configurable: true, writable: false, value: write })
  },
}

async function setup(express: ExpressModule, before: RequestHandler, mounted = false) {
  const app = express()
  const seen: unknown[] = []
  const pay: RequestHandler = (_req, res) => {
    seen.push([res.headersSent, res.writableEnded, isOver(res)])
    res.status(201).json({ paid: true })
    seen.push([res.headersSent, res.writableEnded, isOver(res)])
  }
  app.use(before)
  if (mounted) {
    // Express gives the response the prototype of the app that it enters.
    const inner = express()
    inner.post('/payments', pay)
    app.use('/inner', guardOf(), inner)
  } else {
    app.post('/inner/payments', guardOf(), pay)
  }
  const { send } = await serve(app)
  const ask = () => send({ path: '/inner/payments', key: 'k-1' })
  return { ask, seen }
}

const bodyOf = ({ body }: Reply): string => body.toString()

/** By this the server tells that it may close the connection. Deprecated, and still what counts. */
const isOver = (res: Response): unknown => Reflect.get(res, 'finished')

/** Nothing has left while the handler sees its reply sent; and it runs once. */
const RUN_ONCE = [
  [false, false, false],
  [true, true, false],
]

describe.each(EXPRESSES)('%s', (_, express) => {
  it.each(Object.entries(BEFORE))(
    'holds and replays the reply of a response that %s',
    async (__, change) => {
      const { ask, seen } = await setup(express, (_req, res, next) => {
        change(res)
        next()
      })
      const first = await ask()
      const again = await ask()
      expect([first.status, bodyOf(first), header(again, 'idempotent-replayed')]).toEqual([
        201,
        '{"paid":true}',
        'true',
      ])
      expect(bodyOf(again)).toBe(bodyOf(first))
      expect(seen).toEqual(RUN_ONCE)
    },
  )

  it('holds the reply of an app that is mounted behind the guard', async () => {
    const { ask, seen } = await setup(express, (_req, _res, next) => next(), true)
    const first = await ask()
    expect(bodyOf(first)).toBe('{"paid":true}')
    expect(header(await ask(), 'idempotent-replayed')).toBe('true')
    expect(seen).toEqual(RUN_ONCE)
  })

  it('gives the response its own methods back', async () => {
    const kept: unknown[] = []
    const { ask } = await setup(express, (_req, res, next) => {
      const methods = () => [res.write, res.end, res.writeHead, res.setHeader, res.emit]
      const before = methods()
      res.once('finish', () => kept.push(methods().every((method, n) => method === before[n])))
      next()
    })
    await ask()
    expect(kept).toEqual([true])
  })
})
