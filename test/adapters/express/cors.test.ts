import type { RequestHandler } from 'express'
import { describe, expect, it } from 'vitest'
import { EXPOSED_HEADERS } from '../../../src/http/reply/stored-headers.ts'
import { EXPRESSES, guardOf, header, serve, type Reply } from '../run-express.ts'

/** A minimal CORS middleware. */
const cors: RequestHandler = (req, res, next) => {
  const { origin } = req.headers
  if (origin !== undefined) res.set('Access-Control-Allow-Origin', origin).vary('Origin')
  res.set('Access-Control-Expose-Headers', EXPOSED_HEADERS.join(', '))
  if (req.method !== 'OPTIONS') return next()
  res.set('Access-Control-Allow-Methods', 'POST')
  res.set('Access-Control-Allow-Headers', 'Content-Type, Idempotency-Key').sendStatus(204)
}

describe.each(EXPRESSES)('%s: CORS', (_name, express) => {
  const setup = async () => {
    const app = express()
    let runs = 0
    app.use(cors)
    app.use(guardOf())
    app.post('/', (_req, res) => {
      runs++
      res.status(202).location('/payments/1').set('Retry-After', '2').end()
    })
    const { send } = await serve(app)
    const from = (origin: string, more: object = {}) =>
      send({ key: 'k', headers: { Origin: origin }, ...more })
    return { send, from, runs: () => runs }
  }

  const originOf = (reply: Reply) => header(reply, 'access-control-allow-origin')

  it('gives replays and problems the CORS headers of their request, and exposes ours', async () => {
    const { from, runs } = await setup()
    const first = await from('https://a.example')
    const replay = await from('https://b.example')
    const problem = await from('https://c.example', { body: 'another' })
    const missing = await from('https://d.example', { key: undefined })
    expect([first, replay, problem, missing].map(({ status }) => status)).toEqual([
      202, 202, 422, 400,
    ])
    expect([first, replay, problem, missing].map(originOf)).toEqual([
      'https://a.example',
      'https://b.example',
      'https://c.example',
      'https://d.example',
    ])
    for (const reply of [first, replay, problem, missing]) {
      const exposed = header(reply, 'access-control-expose-headers')!.toLowerCase().split(', ')
      const ours = [...reply.headers.keys()].filter((name) =>
        /^(idempot|retry-after|location|link)/.test(name),
      )
      expect(ours.length).toBeGreaterThan(0)
      expect(exposed).toEqual(expect.arrayContaining(ours))
    }
    expect(runs()).toBe(1)
  })

  it('passes a preflight request through without a key', async () => {
    const { send, runs } = await setup()
    const preflight = await send({
      method: 'OPTIONS',
      headers: {
        Origin: 'https://a.example',
        'Access-Control-Request-Method': 'POST',
        'Access-Control-Request-Headers': 'idempotency-key',
      },
    })
    expect(preflight.status).toBe(204)
    expect(header(preflight, 'access-control-allow-headers')).toContain('Idempotency-Key')
    expect(header(preflight, 'idempotency-expires')).toBeUndefined()
    expect(runs()).toBe(0)
  })
})
