/** All the ways in which a handler of Nest replies or fails. */
import { createReadStream } from 'node:fs'
import { Readable } from 'node:stream'
import type { IncomingMessage, ServerResponse } from 'node:http'
import {
  BadGatewayException,
  BadRequestException,
  Body,
  Catch,
  ConflictException,
  ForbiddenException,
  Header,
  HttpCode,
  Inject,
  Injectable,
  InternalServerErrorException,
  Param,
  Redirect,
  Req,
  RequestTimeoutException,
  Res,
  Scope,
  StreamableFile,
  UseFilters,
  type ArgumentsHost,
} from '@nestjs/common'
import { HttpAdapterHost, REQUEST } from '@nestjs/core'
import { concat, of, throwError, timer } from 'rxjs'
import { map } from 'rxjs/operators'
import { describe, expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { NotExecutedError, OutcomeUnknownError } from '../../../src/core/errors.ts'
import { currentIdempotency } from '../../../src/http/guard/current.ts'
import {
  IdempotencyContext,
  Idempotent,
  type HandlerContext,
  type NestRequest,
} from '../../../src/adapters/nest/index.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { gate, header, json, problemOf, text, turns, type Reply } from '../run-express.ts'
import { controllerOf, PLATFORMS, serveNest, type Platform, type RouteSpec } from '../run-nest.ts'

const replayed = 'idempotent-replayed'

/** The methods that the responses of both platforms share. */
interface AnyResponse {
  status(status: number): AnyResponse
  header(name: string, value: string): AnyResponse
  send(body?: unknown): AnyResponse
  readonly raw?: ServerResponse
}

async function setup(platform: Platform, route: Omit<RouteSpec, 'path'>) {
  let runs = 0
  const store = memoryStore()
  const spec: RouteSpec = {
    ...route,
    decorators: [Idempotent(), ...(route.decorators ?? [])],
    handle: function (this: unknown, ...args: never[]) {
      runs++
      return route.handle.apply(this, args)
    },
  }
  const server = await serveNest({
    platform,
    idempotency: { engine: createEngine({ store }) },
    controllers: [controllerOf({ create: { path: 'items/:id', ...spec } })],
  })
  const send = (body: unknown = { a: 1 }) => server.send({ path: '/items/7', key: 'k', json: body })
  return { ...server, send, runs: () => runs, store }
}

/** Sends a request twice with one key. */
async function twice(platform: Platform, route: Omit<RouteSpec, 'path'>): Promise<Reply> {
  const { send, runs } = await setup(platform, route)
  const first = await send()
  const second = await send()
  expect(header(first, replayed)).toBeUndefined()
  expect(header(second, replayed)).toBe('true')
  expect([second.status, second.body]).toEqual([first.status, first.body])
  expect(header(second, 'content-type')).toBe(header(first, 'content-type'))
  expect(runs()).toBe(1)
  return first
}

const HANDLERS: readonly (readonly [what: string, handle: () => unknown, body: string])[] = [
  ['an object', () => ({ id: 1 }), '{"id":1}'],
  ['a string', () => 'paid', 'paid'],
  ['nothing', () => undefined, ''],
  ['a Promise', async () => ({ id: 1 }), '{"id":1}'],
  ['an Observable', () => of({ id: 1 }), '{"id":1}'],
  ['a slow Observable', () => timer(1).pipe(map(() => 'late')), 'late'],
  ['an Observable of several values', () => of('first', 'second', 'last'), 'last'],
  ['a Promise of an Observable', async () => of('inner'), 'inner'],
  ['a file', () => new StreamableFile(Buffer.from([0, 255])), Buffer.from([0, 255]).toString()],
  ['a streamed file', () => new StreamableFile(Readable.from(['a', 'b'])), 'ab'],
]

describe.each(PLATFORMS)('protected handlers on %s', (platform) => {
  it.each(HANDLERS)(
    'replays the reply of a handler that returns %s',
    async (_what, handle, body) => {
      const first = await twice(platform, { handle })
      expect([first.status, text(first)]).toEqual([201, body])
    },
  )

  it('replays the status and headers that decorators set', async () => {
    const decorators = [HttpCode(202), Header('X-Kind', 'receipt'), Header('Cache-Control', 'none')]
    const first = await twice(platform, { decorators, handle: () => ({ ok: true }) })
    expect([first.status, header(first, 'x-kind')]).toEqual([202, 'receipt'])
    expect(header(first, 'cache-control')).toBe('none')
  })

  it('replays a 204 with an empty body', async () => {
    const first = await twice(platform, { decorators: [HttpCode(204)], handle: () => undefined })
    expect([first.status, text(first)]).toEqual([204, ''])
  })

  it('replays a redirect with its location', async () => {
    const decorators = [Redirect('/elsewhere', 303)]
    const { send, runs } = await setup(platform, { decorators, handle: () => undefined })
    for (let n = 0; n < 2; n++) {
      const reply = await send()
      expect([reply.status, header(reply, 'location')]).toEqual([303, '/elsewhere'])
    }
    expect(runs()).toBe(1)
  })

  it('replays a reply that uses @Res(), with and without passthrough', async () => {
    const reply = async (response: AnyResponse) => {
      await turns(1)
      response.status(203).header('X-Own', 'yes').send({ own: true })
    }
    const own = await twice(platform, { params: [Res()], handle: reply })
    expect([own.status, json(own), header(own, 'x-own')]).toEqual([203, { own: true }, 'yes'])
    const passed = await twice(platform, {
      params: [Res({ passthrough: true })],
      handle: (response: AnyResponse) => {
        response.status(202).header('X-Own', 'yes')
        return { own: false }
      },
    })
    expect([passed.status, json(passed)]).toEqual([202, { own: false }])
  })

  it('replays a reply that the handler writes to the response of Node', async () => {
    const first = await twice(platform, {
      params: [Res()],
      handle: (response: AnyResponse & ServerResponse) => {
        const raw = response.raw ?? response
        raw.writeHead(200, { 'Content-Type': 'text/plain' })
        raw.write('one ')
        raw.end('two')
        return new Promise(() => undefined)
      },
    })
    expect(text(first)).toBe('one two')
  })

  it('gives the handler one context by request, parameter and currentIdempotency()', async () => {
    const first = await twice(platform, {
      params: [Req(), IdempotencyContext(), Body(), Param('id')],
      handle: async (request: NestRequest, context: HandlerContext, body: unknown, id: string) => {
        await turns(1)
        const [current, own] = [currentIdempotency(), request.idempotency]
        return { same: context === own && current === own, key: context.key, body, id }
      },
    })
    expect(json(first)).toEqual({ same: true, key: 'k', body: { a: 1 }, id: '7' })
  })

  it('runs again after NotExecutedError, and never after OutcomeUnknownError', async () => {
    const errors = [new NotExecutedError(), new OutcomeUnknownError('lost')]
    const { send, runs } = await setup(platform, {
      handle: () => {
        throw errors.shift()!
      },
    })
    expect([(await send()).status, (await send()).status]).toEqual([500, 500])
    expect(problemOf(await send())).toEqual([409, 'idempotency_outcome_unknown'])
    expect(runs()).toBe(2)
  })

  it.each([
    [500, 409, 'a lost call', () => Object.assign(new Error('socket'), { code: 'ECONNRESET' })],
    [500, 409, 'a lost call in an Observable', () => new TypeError('fetch failed')],
    [502, 409, 'a 502', () => new BadGatewayException()],
    [502, 502, 'a 502 caused by a call that was never sent', () => badGateway('ECONNREFUSED')],
    [500, 409, 'a 500 caused by a lost call', () => internalError('ETIMEDOUT')],
    [408, 409, 'the 408 of a timeout', () => new RequestTimeoutException()],
    [500, 500, 'a plain 500', () => new InternalServerErrorException()],
    [500, 500, 'any other error', () => new Error('bug')],
    [403, 403, 'a 403', () => new ForbiddenException()],
  ])('returns %i first and %i to a retry after %s', async (first, second, _what, error) => {
    const { send } = await setup(platform, { handle: () => throwError(error) })
    expect((await send()).status).toBe(first)
    expect((await send()).status).toBe(second)
  })

  it.each([
    ['ConflictException', () => new ConflictException('taken'), 409],
    ['BadRequestException', () => new BadRequestException(['amount must be positive']), 400],
  ])('records and replays the reply of a %s', async (_what, error, status) => {
    const handle = () => {
      throw error()
    }
    expect((await twice(platform, { handle })).status).toBe(status)
  })

  it('reports an error to the guard before an exception filter replies to it', async () => {
    class Teapot {
      readonly #host: HttpAdapterHost

      constructor(host: HttpAdapterHost) {
        this.#host = host
      }

      catch(_error: unknown, host: ArgumentsHost) {
        this.#host.httpAdapter.reply(host.getArgByIndex(1), { filtered: true }, 500)
      }
    }
    Catch()(Teapot)
    Inject(HttpAdapterHost)(Teapot, undefined, 0)
    const { send, runs } = await setup(platform, {
      decorators: [UseFilters(Teapot)],
      handle: () => {
        throw new TypeError('fetch failed')
      },
    })
    const first = await send()
    expect([first.status, json(first)]).toEqual([500, { filtered: true }])
    expect(problemOf(await send())).toEqual([409, 'idempotency_outcome_unknown'])
    expect(runs()).toBe(1)
  })

  it('runs again when the stream of a file fails', async () => {
    const broken = () =>
      new StreamableFile(
        Readable.from(
          (async function* () {
            yield 'half'
            await turns(2)
            throw Object.assign(new Error('disk'), { code: 'EIO' })
          })(),
        ),
      )
    const files = [broken, () => new StreamableFile(Buffer.from('whole'))]
    const { send, runs } = await setup(platform, { handle: () => files.shift()!() })
    expect((await send()).status).toBe(500)
    expect(text(await send())).toBe('whole')
    expect(runs()).toBe(2)
  })

  it('answers a retry like the first request when a file cannot be opened', async () => {
    const handle = () => new StreamableFile(createReadStream('no-such-file'))
    const { send } = await setup(platform, { handle })
    const [first, second] = [await send(), await send()]
    expect(first.status).toBeGreaterThanOrEqual(400)
    expect(second.status).toBe(first.status)
  })

  it('protects a request-scoped controller', async () => {
    class PerRequest {
      readonly request: NestRequest

      constructor(request: NestRequest) {
        this.request = request
      }
    }
    Injectable({ scope: Scope.REQUEST })(PerRequest)
    Inject(REQUEST)(PerRequest, undefined, 0)
    let runs = 0
    const controller = controllerOf(
      {
        create: {
          decorators: [Idempotent()],
          handle: function (this: { readonly own: PerRequest }) {
            return { run: ++runs, method: this.own.request.method }
          },
        },
      },
      [],
      'scoped',
    )
    Inject(PerRequest)(controller.prototype as object, 'own')
    const { send } = await serveNest({
      platform,
      controllers: [controller],
      providers: [PerRequest],
    })
    for (let n = 0; n < 2; n++) {
      const reply = await send({ path: '/scoped', key: 'k' })
      expect(json(reply)).toEqual({ run: 1, method: 'POST' })
    }
  })

  it('runs an Observable to its end and replays it after the client disconnected', async () => {
    const [entered, gone] = [gate(), gate()]
    const { connect, send, server, runs } = await setup(platform, {
      handle: () => {
        entered.open()
        // Nest 11 would unsubscribe between the first value and the last one.
        return concat(of('first'), gone.passed)
      },
    })
    const closed = gate()
    server.once('connection', (socket) => socket.once('close', () => closed.open()))
    const client = await connect({ path: '/items/7', key: 'k', json: { a: 1 } })
    await entered.passed
    client.cut()
    await closed.passed
    await turns()
    expect(problemOf(await send())).toEqual([409, 'idempotency_key_in_progress'])
    gone.open()
    await turns()
    const retry = await send()
    expect([retry.status, header(retry, replayed)]).toEqual([201, 'true'])
    expect(runs()).toBe(1)
  })

  it('runs a handler to its end and replays it after the client disconnected', async () => {
    const [entered, finished] = [gate<IncomingMessage>(), gate()]
    const { connect, send, runs } = await setup(platform, {
      params: [Req()],
      handle: async (request: IncomingMessage) => {
        entered.open(request)
        await finished.passed
        return { done: true }
      },
    })
    const client = await connect({ path: '/items/7', key: 'k', json: { a: 1 } })
    await entered.passed
    client.cut()
    finished.open()
    await turns()
    expect(json(await send())).toEqual({ done: true })
    expect(runs()).toBe(1)
  })
})

function badGateway(code: string): Error {
  const cause = Object.assign(new Error('provider'), { code })
  return new BadGatewayException('provider', { cause })
}

function internalError(code: string): Error {
  const cause = Object.assign(new Error('provider'), { code })
  return new InternalServerErrorException('provider', { cause })
}
