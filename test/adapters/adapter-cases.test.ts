// Takes about 32 s.
/** The shared adapter cases on node:http, fetch and both versions of Express. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import { idempotency, idempotencyStatus } from '../../src/adapters/express/index.ts'
import {
  idempotency as forFetch,
  idempotencyOf as ofFetch,
  idempotencyStatus as statusForFetch,
} from '../../src/adapters/fetch/index.ts'
import {
  idempotency as forNode,
  idempotencyOf,
  idempotencyStatus as statusForNode,
} from '../../src/adapters/node/index.ts'
import {
  adaptOptions,
  adaptStatusOptions,
  type AdapterSubject,
  type CaseReply,
} from '../../src/testing/index.ts'
import { runAdapterCases } from './run-adapter-cases.ts'
import { caught, EXPRESSES, serve, type ExpressModule } from './run-express.ts'
import { serveWeb } from './web/serve-web.ts'

const headOf = (req: IncomingMessage) => ({
  header: (name: string) => req.headers[name]?.toString(),
})

async function bytesOf(req: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = []
  for await (const chunk of req) chunks.push(chunk as Buffer)
  return Buffer.concat(chunks)
}

async function sendTo(res: ServerResponse, { status, headers, body, stream }: CaseReply) {
  res.statusCode = status
  for (const [name, value] of Object.entries(headers ?? {})) res.setHeader(name, value)
  if (stream === undefined) return void res.end(body)
  for await (const chunk of stream) res.write(chunk)
  res.end()
}

function expressSubject(express: ExpressModule): AdapterSubject {
  return {
    without: { validation: 'everything behind the guard counts as the handler' },
    async serve({ options, routes, status }) {
      const app = express()
      const guard = idempotency(adaptOptions(options, headOf))
      for (const { method = 'POST', path, options: own, handle } of routes) {
        const verb = method.toLowerCase() as 'post'
        const guards =
          own === false ? [] : [own === undefined ? guard : guard.with(adaptOptions(own, headOf))]
        app[verb](
          path,
          ...guards,
          caught(async (req, res) => {
            const bytes = () => bytesOf(req)
            const reply = await handle({
              ...headOf(req),
              idempotency: req.idempotency,
              bytes,
              json: async () => JSON.parse((await bytes()).toString()) as unknown,
            })
            await sendTo(res, reply)
          }),
        )
      }
      if (status !== undefined) {
        const handler = idempotencyStatus(adaptStatusOptions(status.options, headOf))
        app.get(`${status.path}/:id`, handler)
      }
      return serve(app)
    },
  }
}

for (const [name, express] of EXPRESSES) runAdapterCases(name, expressSubject(express))

/** Replies as the default does, but prints nothing into the output of the tests. */
function answer500(_error: unknown, _req: IncomingMessage, res: ServerResponse) {
  if (res.headersSent) res.destroy()
  else res.writeHead(500).end()
}

runAdapterCases('node:http', {
  without: {
    templates: 'a plain server has no routes',
    validation: 'the listener is the handler',
  },
  async serve({ options, routes, status }) {
    const report =
      status &&
      statusForNode({
        ...adaptStatusOptions(status.options, headOf),
        onRequestError: answer500,
      })
    const protect = forNode({ ...adaptOptions(options, headOf), onRequestError: answer500 })
    const listeners = routes.map(({ method = 'POST', path, options: own, handle }) => {
      const listener = async (req: IncomingMessage, res: ServerResponse) => {
        const bytes = () => bytesOf(req)
        const reply = await handle({
          ...headOf(req),
          idempotency: own === false ? undefined : contextOf(() => idempotencyOf(req)),
          bytes,
          json: async () => JSON.parse((await bytes()).toString()) as unknown,
        })
        await sendTo(res, reply)
      }
      const listen =
        own === false ? listener : protect.with(adaptOptions(own ?? {}, headOf))(listener)
      return { method, path, listen }
    })
    return serve((req, res) => {
      const path = req.url?.split('?')[0]
      const found = listeners.find((one) => one.method === req.method && one.path === path)
      if (report !== undefined && path?.startsWith(`${status!.path}/`)) report(req, res)
      else if (found === undefined) res.writeHead(404).end()
      else void found.listen(req, res)
    })
  },
})

const webHeadOf = (request: Request) => ({
  header: (name: string) => request.headers.get(name) ?? undefined,
})

runAdapterCases('fetch', {
  without: {
    templates: 'a single handler has no routes',
    validation: 'no code runs between the guard and the handler',
  },
  async serve({ options, routes, status }) {
    const report = status && statusForFetch(adaptStatusOptions(status.options, webHeadOf))
    const protect = forFetch(adaptOptions(options, webHeadOf))
    const handlers = routes.map(({ method = 'POST', path, options: own, handle }) => {
      const handler = async (request: Request) => {
        const reply = await handle({
          ...webHeadOf(request),
          idempotency: contextOf(() => ofFetch(request)),
          bytes: async () => new Uint8Array(await request.arrayBuffer()),
          json: () => request.json(),
        })
        return toResponse(reply)
      }
      if (own === false) return { method, path, handler }
      const protectRoute = protect.with(adaptOptions(own ?? {}, webHeadOf))
      return { method, path, handler: protectRoute(handler) }
    })
    return serveWeb((request) => {
      const { pathname } = new URL(request.url)
      if (report !== undefined && pathname.startsWith(`${status!.path}/`)) return report(request)
      const found = handlers.find(({ method, path }) => {
        return method === request.method && path === pathname
      })
      return found?.handler(request) ?? new Response(null, { status: 404 })
    })
  },
})

function contextOf<Context>(get: () => Context): Context | undefined {
  try {
    return get()
  } catch {
    return undefined
  }
}

function toResponse({ status, headers, body, stream }: CaseReply): Response {
  const all = new Headers()
  for (const [name, values] of Object.entries(headers ?? {})) {
    for (const value of [values].flat()) all.append(name, value)
  }
  const source = stream === undefined ? body : ReadableStream.from(stream)
  return new Response(source as ReadableStream | undefined, { status, headers: all })
}
