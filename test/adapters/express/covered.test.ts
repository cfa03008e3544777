import type { RequestHandler, Response } from 'express'
import { describe, expect, it } from 'vitest'
import {
  EXPRESSES,
  guardOf,
  header,
  serve,
  type ExpressModule,
  type Reply,
} from '../run-express.ts'

/** Changes that middleware before the guard makes to a response. */
const BEFORE: Readonly<Record<string, (res: Response) => void>> = {
  'is unchanged': () => undefined,
  'has a wrapped end': (res) => {
    const end = res.end.bind(res) as (...args: unknown[]) => Response
    res.end = (...args: unknown[]) => {
      res.locals['ended'] = true
      return end(...args)
    }
  },
  'has end as an accessor': (res) => {
    const { end } = res
    Object.defineProperty(res, 'end', { configurable: true, get: () => end })
  },
  'has a read-only write': (res) => {
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
    // Express changes the prototype of the response when a request enters a mounted app.
    const inner = express()
    inner.post('/payments', pay)
    app.use('/inner', guardOf(), inner)
  } else {
    app.post('/inner/payments', guardOf(), pay)
  }
  const { send } = await serve(app)
  const post = () => send({ path: '/inner/payments', key: 'k-1' })
  return { post, seen }
}

const bodyOf = ({ body }: Reply): string => body.toString()

/** The server reads this deprecated field to decide whether it may close the connection. */
const isOver = (res: Response): unknown => Reflect.get(res, 'finished')

/** The handler ran once. It sees its reply as sent, although nothing has left yet. */
const RUN_ONCE = [
  [false, false, false],
  [true, true, false],
]

describe.each(EXPRESSES)('%s', (_, express) => {
  it.each(Object.entries(BEFORE))(
    'holds and replays the reply of a response that %s',
    async (__, change) => {
      const { post, seen } = await setup(express, (_req, res, next) => {
        change(res)
        next()
      })
      const first = await post()
      const again = await post()
      expect([first.status, bodyOf(first), header(again, 'idempotent-replayed')]).toEqual([
        201,
        '{"paid":true}',
        'true',
      ])
      expect(bodyOf(again)).toBe(bodyOf(first))
      expect(seen).toEqual(RUN_ONCE)
    },
  )

  it('holds and replays the reply of an app that is mounted behind the guard', async () => {
    const { post, seen } = await setup(express, (_req, _res, next) => next(), true)
    const first = await post()
    expect(bodyOf(first)).toBe('{"paid":true}')
    expect(header(await post(), 'idempotent-replayed')).toBe('true')
    expect(seen).toEqual(RUN_ONCE)
  })

  it('restores the methods of the response', async () => {
    const kept: unknown[] = []
    const { post } = await setup(express, (_req, res, next) => {
      const methods = () => [res.write, res.end, res.writeHead, res.setHeader, res.emit]
      const before = methods()
      res.once('finish', () => kept.push(methods().every((method, n) => method === before[n])))
      next()
    })
    await post()
    expect(kept).toEqual([true])
  })
})
