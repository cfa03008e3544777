import { brotliDecompressSync, gunzipSync, gzipSync } from 'node:zlib'
import compression from 'compression'
import type { RequestHandler } from 'express'
import { describe, expect, it } from 'vitest'
import { EXPRESSES, guardOf, header, problemOf, serve, type ExpressModule } from '../run-express.ts'

const LONG = 'a reply that is long enough to be compressed. '.repeat(50)

const compress = () => compression({ threshold: 0 })

async function setup(express: ExpressModule, where: 'outside' | 'inside', cap?: number) {
  const app = express()
  const guard = guardOf(cap === undefined ? {} : { replyBytesMax: cap })
  let runs = 0
  const handler: RequestHandler = (_req, res) => {
    runs++
    res.status(201).type('text/plain').send(LONG)
  }
  if (where === 'outside') app.use(compress())
  app.post('/', guard, ...(where === 'inside' ? [compress()] : []), handler)
  const { send } = await serve(app)
  const as = (accepted: string | undefined, body = 'x') =>
    send({
      key: 'k',
      body,
      headers: accepted === undefined ? {} : { 'Accept-Encoding': accepted },
    })
  return { as, runs: () => runs }
}

describe.each(EXPRESSES)('%s: compression outside the guard', (_name, express) => {
  it('encodes each replay as its client accepts, from one uncompressed record', async () => {
    const { as, runs } = await setup(express, 'outside')
    const first = await as('gzip')
    expect(header(first, 'content-encoding')).toBe('gzip')
    expect(gunzipSync(first.body).toString()).toBe(LONG)
    const plain = await as(undefined)
    expect(header(plain, 'content-encoding')).toBeUndefined()
    expect(plain.body.toString()).toBe(LONG)
    const brotli = await as('br')
    expect(header(brotli, 'content-encoding')).toBe('br')
    expect(brotliDecompressSync(brotli.body).toString()).toBe(LONG)
    const again = await as('gzip')
    expect(gunzipSync(again.body).toString()).toBe(LONG)
    for (const reply of [plain, brotli, again]) {
      expect([reply.status, header(reply, 'idempotent-replayed')]).toEqual([201, 'true'])
    }
    expect(runs()).toBe(1)
  })

  it('serves problems and replies above the cap in the accepted encoding', async () => {
    const { as, runs } = await setup(express, 'outside', 100)
    expect(gunzipSync((await as('gzip')).body).toString()).toBe(LONG)
    const replay = await as('gzip')
    expect(header(replay, 'idempotent-body-elided')).toBe('true')
    expect(JSON.parse(gunzipSync(replay.body).toString())).toMatchObject({
      code: 'idempotency_body_elided',
    })
    const other = await as(undefined, 'y')
    expect(problemOf(other)).toEqual([422, 'idempotency_key_reused_with_different_payload'])
    expect(runs()).toBe(1)
  })
})

describe.each(EXPRESSES)('%s: compression inside the guard', (_name, express) => {
  it('replays the compressed bytes to a client that accepts their encoding', async () => {
    const { as, runs } = await setup(express, 'inside')
    const first = await as('gzip')
    const replay = await as('br;q=0.5, gzip')
    expect(gunzipSync(first.body).toString()).toBe(LONG)
    expect(replay.body).toEqual(first.body)
    expect(header(replay, 'content-encoding')).toBe('gzip')
    expect(header(replay, 'vary')).toBe('Accept-Encoding')
    expect(runs()).toBe(1)
  })

  it.each([undefined, 'br', 'gzip;q=0, *', 'identity'])(
    'decompresses a replay for a client that accepts %s',
    async (accepted) => {
      const { as, runs } = await setup(express, 'inside')
      expect(header(await as('gzip'), 'content-encoding')).toBe('gzip')
      const replay = await as(accepted)
      expect(header(replay, 'content-encoding')).toBeUndefined()
      expect(header(replay, 'content-length')).toBe(String(LONG.length))
      expect(replay.body.toString()).toBe(LONG)
      expect(header(replay, 'idempotent-replayed')).toBe('true')
      expect(runs()).toBe(1)
    },
  )

  it('does not compress a replay that was recorded uncompressed', async () => {
    const { as } = await setup(express, 'inside')
    await as(undefined)
    const replay = await as('gzip')
    expect(header(replay, 'content-encoding')).toBeUndefined()
    expect(replay.body.toString()).toBe(LONG)
  })

  it('replays a compressed body unchanged when it cannot be decompressed', async () => {
    const app = express()
    const bytes = gzipSync('cut off').subarray(0, 12)
    app.post('/', guardOf(), (_req, res) => {
      res.set('Content-Encoding', 'gzip').end(bytes)
    })
    const { send } = await serve(app)
    for (let n = 0; n < 2; n++) {
      const reply = await send({ key: 'k' })
      expect([header(reply, 'content-encoding'), reply.body]).toEqual(['gzip', bytes])
    }
  })
})
