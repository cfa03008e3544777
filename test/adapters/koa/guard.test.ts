/** The shared adapter cases on both versions of Koa, with routes of `@koa/router`. */
import { Readable } from 'node:stream'
import bodyParser from 'koa-bodyparser'
import type { Context } from 'koa'
import { idempotency, idempotencyStatus } from '../../../src/adapters/koa/index.ts'
import {
  adaptOptions,
  adaptStatusOptions,
  type AdapterSubject,
  type CaseReply,
} from '../../../src/testing/index.ts'
import { runAdapterCases } from '../run-adapter-cases.ts'
import { KOAS, Router, serveKoa, type KoaModule } from '../run-koa.ts'

const headOf = (ctx: Context) => ({
  header: (name: string) => ctx.req.headers[name]?.toString(),
})

async function bytesOf(ctx: Context): Promise<Buffer> {
  const chunks: Buffer[] = []
  for await (const chunk of ctx.req) chunks.push(chunk as Buffer)
  return Buffer.concat(chunks)
}

/** Parses behind the guard, as the guide recommends. */
async function jsonOf(ctx: Context): Promise<unknown> {
  await bodyParser()(ctx, async () => undefined)
  return ctx.request.body
}

function reply(ctx: Context, { status, headers, body, stream }: CaseReply): void {
  if (stream !== undefined) ctx.body = Readable.from(stream, { objectMode: false })
  else ctx.body = body instanceof Uint8Array ? Buffer.from(body) : (body ?? null)
  ctx.status = status
  if (stream === undefined && typeof body === 'string') ctx.remove('Content-Type')
  for (const [name, value] of Object.entries(headers ?? {})) ctx.set(name, [value].flat())
}

function koaSubject(koa: KoaModule): AdapterSubject {
  return {
    without: { validation: 'everything behind the guard counts as the handler' },
    async serve({ options, routes, status }) {
      const router = new Router()
      const guard = idempotency(adaptOptions(options, headOf))
      for (const { method = 'POST', path, options: own, handle } of routes) {
        const guards =
          own === false ? [] : [own === undefined ? guard : guard.with(adaptOptions(own, headOf))]
        router.register(path, [method], [
          ...guards,
          async (ctx: Context) => {
            const { idempotency: context } = ctx
            const given = await handle({
              ...headOf(ctx),
              idempotency: context,
              bytes: () => bytesOf(ctx),
              json: () => jsonOf(ctx),
            })
            reply(ctx, given)
          },
        ] as never)
      }
      if (status !== undefined) {
        const handler = idempotencyStatus(adaptStatusOptions(status.options, headOf))
        router.get(`${status.path}/:id`, handler)
      }
      return serveKoa(koa, router.routes())
    },
  }
}

for (const [name, koa] of KOAS) runAdapterCases(name, koaSubject(koa))
