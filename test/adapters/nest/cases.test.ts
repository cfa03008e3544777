// Takes about 21 s.
/** The shared adapter cases on both platforms. The vitest project decides the version of Nest. */
import type { IncomingMessage } from 'node:http'
import { Readable } from 'node:stream'
import {
  BadRequestException,
  createParamDecorator,
  Req,
  Res,
  StreamableFile,
  type ExecutionContext,
  type INestApplication,
  type PipeTransform,
} from '@nestjs/common'
import type { FastifyInstance } from 'fastify'
import {
  Idempotent,
  IdempotencyStatus,
  type NestRequest,
} from '../../../src/adapters/nest/index.ts'
import {
  adaptOptions,
  adaptStatusOptions,
  type AdapterSubject,
  type CaseReply,
  type CaseRoute,
  type CaseStatus,
} from '../../../src/testing/index.ts'
import { runAdapterCases } from '../run-adapter-cases.ts'
import { controllerOf, PLATFORMS, serveNest, type Platform, type RouteSpec } from '../run-nest.ts'

interface NestResponse {
  status(status: number): unknown
  header(name: string, value: string | readonly string[]): unknown
}

const headOf = (request: NestRequest) => ({
  header: (name: string) => request.headers[name]?.toString(),
})

function nestSubject(platform: Platform): AdapterSubject {
  return {
    serve: ({ options, routes, status }) => {
      const controllers = routes.map(({ method = 'POST', path, options: own, handle, isValid }) => {
        const route: RouteSpec = {
          method,
          path,
          params: [Req(), Res({ passthrough: true }), Head(validatingPipe(isValid))],
          handle: async (request: NestRequest, response: NestResponse) => {
            const reply = await handle({
              ...headOf(request),
              idempotency: request.idempotency,
              json: async () => request.body,
              bytes: () => bytesOf(request),
            })
            return sendAs(response, reply)
          },
        }
        // On the controller, because there it may name methods that the route does not serve.
        return controllerOf({ route }, [Idempotent(own && adaptOptions(own, headOf))])
      })
      return serveNest({
        platform,
        idempotency: adaptOptions(options, headOf),
        controllers: [...controllers, ...statusOf(status)],
        app: { rawBody: true },
        prepare: (app) => (platform === 'fastify' ? acceptAnyBody(app) : undefined),
      })
    },
  }
}

/** The request as a custom parameter, because pipes do not run for `@Req()`. */
const Head = createParamDecorator((_data: unknown, context: ExecutionContext): NestRequest => {
  return context.switchToHttp().getRequest()
})

const validatingPipe = (isValid: CaseRoute['isValid']): PipeTransform<NestRequest> => ({
  transform: (request) => {
    if (isValid?.(headOf(request)) === false) throw new BadRequestException('invalid')
    return request
  },
})

function statusOf(status: CaseStatus | undefined) {
  if (status === undefined) return []
  const decorators = [IdempotencyStatus(adaptStatusOptions(status.options, headOf))]
  const handle = () => {
    throw new Error('the method is never called')
  }
  return [
    controllerOf({ status: { method: 'GET', path: ':id', decorators, handle } }, [], status.path),
  ]
}

/** Fastify refuses a content type without a parser. */
function acceptAnyBody(app: INestApplication): void {
  const fastify = app.getHttpAdapter().getInstance() as FastifyInstance
  fastify.addContentTypeParser('*', { parseAs: 'buffer' }, (_request, body, done) => {
    done(null, body)
  })
}

async function bytesOf(request: NestRequest): Promise<Uint8Array> {
  if (request.body instanceof Uint8Array) return request.body
  if (typeof request.body === 'string') return Buffer.from(request.body)
  const chunks: Buffer[] = []
  for await (const chunk of request as unknown as IncomingMessage) chunks.push(chunk as Buffer)
  return Buffer.concat(chunks)
}

function sendAs(response: NestResponse, { status, headers, body, stream }: CaseReply): unknown {
  response.status(status)
  for (const [name, value] of Object.entries(headers ?? {})) response.header(name, value)
  if (stream !== undefined) return new StreamableFile(Readable.from(stream))
  return body instanceof Uint8Array ? new StreamableFile(body) : body
}

for (const platform of PLATFORMS) runAdapterCases(`nest on ${platform}`, nestSubject(platform))
