/** Request bodies with parsers before the guard, behind it, or without a parser. */
import { promisify } from 'node:util'
import { gzipSync } from 'node:zlib'
import type { Context, Middleware } from 'koa'
import bodyParser from 'koa-bodyparser'
import multer from 'multer'
import { describe, expect, it } from 'vitest'
import { header, json, problemOf, type Send } from '../run-express.ts'
import { counted, guardOf, KOAS, serveKoa } from '../run-koa.ts'

const echo = () =>
  counted((ctx: Context) => {
    ctx.body = { got: ctx.request.body }
  })

const MISMATCH = [422, 'idempotency_key_reused_with_different_payload']

const form = (boundary: string, amount: string): Send => ({
  key: 'k',
  headers: { 'Content-Type': `multipart/form-data; boundary=${boundary}` },
  body:
    `--${boundary}\r\nContent-Disposition: form-data; name="amount"\r\n\r\n${amount}\r\n` +
    `--${boundary}--\r\n`,
})

describe.each(KOAS)('%s', (_name, koa) => {
  describe.each([
    ['before', (guard: Middleware) => [bodyParser(), guard]],
    ['behind', (guard: Middleware) => [guard, bodyParser()]],
  ])('koa-bodyparser %s the guard', (_where, order) => {
    it('compares JSON by meaning and numbers exactly', async () => {
      const handler = echo()
      const { send } = await serveKoa(koa, ...order(guardOf()), handler)
      const headers = { 'Content-Type': 'application/json' }
      const first = await send({ key: 'k', headers, body: '{"a":1,"id":9007199254740993}' })
      const retry = await send({ key: 'k', headers, body: '{ "id": 9007199254740993, "a": 1 }' })
      const other = await send({ key: 'k', headers, body: '{"a":1,"id":9007199254740992}' })
      expect(json(first)).toMatchObject({ got: { a: 1 } })
      expect(retry.body).toEqual(first.body)
      expect(problemOf(other)).toEqual(MISMATCH)
      expect(handler.runs).toBe(1)
    })

    it('compares forms, and compressed bodies by their content', async () => {
      const handler = echo()
      const { send } = await serveKoa(koa, ...order(guardOf()), handler)
      const headers = { 'Content-Type': 'application/x-www-form-urlencoded' }
      const first = await send({ key: 'k', headers, body: 'a=1&b=2' })
      const zipped = { ...headers, 'Content-Encoding': 'gzip' }
      const retry = await send({ key: 'k', headers: zipped, body: gzipSync('a=1&b=2') })
      const other = await send({ key: 'k', headers, body: 'a=1&b=3' })
      expect(json(first)).toEqual({ got: { a: '1', b: '2' } })
      expect(header(retry, 'idempotent-replayed')).toBe('true')
      expect(problemOf(other)).toEqual(MISMATCH)
    })

    it('compares bodies that the parser does not parse', async () => {
      const handler = echo()
      const { send } = await serveKoa(koa, ...order(guardOf()), handler)
      const headers = { 'Content-Type': 'application/octet-stream' }
      await send({ key: 'k', headers, chunks: ['ab', 'c'] })
      expect(header(await send({ key: 'k', headers, body: 'abc' }), 'idempotent-replayed')).toBe(
        'true',
      )
      expect(problemOf(await send({ key: 'k', headers, body: 'abd' }))).toEqual(MISMATCH)
    })

    it('replays a request without a body', async () => {
      const { send } = await serveKoa(koa, ...order(guardOf()), echo())
      await send({ key: 'k' })
      expect(header(await send({ key: 'k' }), 'idempotent-replayed')).toBe('true')
    })
  })

  it('compares multipart without its boundary and leaves it readable for a parser', async () => {
    const fields: unknown[] = []
    const handler = counted(async (ctx) => {
      await promisify(multer().none())(ctx.req as never, ctx.res as never)
      fields.push({ ...(ctx.req as unknown as { body: object }).body })
      ctx.body = 'ok'
    })
    const { send } = await serveKoa(koa, guardOf(), handler)
    expect((await send(form('one', '7'))).status).toBe(200)
    expect(header(await send(form('two', '7')), 'idempotent-replayed')).toBe('true')
    expect(problemOf(await send(form('two', '8')))).toEqual(MISMATCH)
    expect(fields).toEqual([{ amount: '7' }])
  })

  it('fails with advice when an earlier middleware has consumed the body', async () => {
    const uploads: Middleware = async (ctx, next) => {
      await promisify(multer().none())(ctx.req as never, ctx.res as never)
      ctx.request.body = (ctx.req as unknown as { body: unknown }).body
      await next()
    }
    const handler = echo()
    const { send, errors } = await serveKoa(koa, uploads, guardOf(), handler)
    expect((await send(form('one', '7'))).status).toBe(500)
    expect(errors[0]?.message).toMatch('mount idempotency() before the parser')
    expect(handler.runs).toBe(0)
  })

  it('compares the parsed value when the parser keeps no raw body', async () => {
    const parser: Middleware = async (ctx, next) => {
      await bodyParser()(ctx, async () => undefined)
      Object.assign(ctx.request, { rawBody: undefined })
      await next()
    }
    const { send } = await serveKoa(koa, parser, guardOf(), echo())
    await send({ key: 'k', json: { amount: 1 } })
    expect(header(await send({ key: 'k', json: { amount: 1 } }), 'idempotent-replayed')).toBe(
      'true',
    )
    expect(problemOf(await send({ key: 'k', json: { amount: 2 } }))).toEqual(MISMATCH)
  })

  it('returns 413 for a body above requestBytesMax', async () => {
    const handler = echo()
    const guard = guardOf({ requestBytesMax: 10 })
    const { send } = await serveKoa(koa, guard, bodyParser(), handler)
    expect((await send({ key: 'k', json: { text: 'a'.repeat(20) } })).status).toBe(413)
    expect(handler.runs).toBe(0)
  })

  it('reads the key from a field of the body', async () => {
    const guard = guardOf({ keyField: 'requestId' })
    const handler = echo()
    const { send } = await serveKoa(koa, guard, bodyParser(), handler)
    for (const replayed of [undefined, 'true']) {
      const reply = await send({ json: { requestId: 'r-1' } })
      expect(header(reply, 'idempotent-replayed')).toBe(replayed)
    }
  })
})
