/** Replies of Nest that are made before the method of a controller is entered. */
import {
  BadRequestException,
  Body,
  SetMetadata,
  UseInterceptors,
  type CallHandler,
  type ExecutionContext,
  type PipeTransform,
} from '@nestjs/common'
import { race, throwError, from } from 'rxjs'
import { mergeMap } from 'rxjs/operators'
import { describe, expect, it } from 'vitest'
import { Idempotent } from '../../src/adapters/nest.ts'
import { createEngine } from '../../src/core/engine.ts'
import { OutcomeUnknownError } from '../../src/core/errors.ts'
import { memoryStore } from '../../src/stores/memory/memory-store.ts'
import { gate, header, problemOf, text, turns } from './run-express.ts'
import { controllerOf, PLATFORMS, serveNest, type Platform, type RouteSpec } from './run-nest.ts'

async function setup(platform: Platform, route: Omit<RouteSpec, 'handle'>) {
  let runs = 0
  const engine = createEngine({ store: memoryStore() })
  const handle = () => `run ${++runs}`
  const spec = { ...route, handle, decorators: [Idempotent(), ...(route.decorators ?? [])] }
  const server = await serveNest({
    platform,
    idempotency: { engine },
    controllers: [controllerOf({ create: spec })],
  })
  const scope = { tenant: 'single', operation: 'POST /' }
  const record = () => engine.read({ scope, key: 'k' })
  return { send: () => server.send({ key: 'k', json: {} }), record, runs: () => runs }
}

const pipe = (transform: PipeTransform['transform']): PipeTransform => ({ transform })

describe.each(PLATFORMS)('a pipe on %s', (platform) => {
  it('that refuses a request releases its key', async () => {
    const errors: Error[] = [new BadRequestException('no'), new TypeError('broken')]
    const refuse = pipe((value: unknown) => {
      const error = errors.shift()
      if (error !== undefined) throw error
      return value
    })
    const { send, record, runs } = await setup(platform, { params: [Body(refuse)] })
    expect((await send()).status).toBe(400)
    expect(await record()).toMatchObject({ state: 'failed_retryable', proof: 'declared' })
    expect((await send()).status).toBe(500)
    expect(runs()).toBe(0)
    expect(text(await send())).toBe('run 1')
    expect(header(await send(), 'idempotent-replayed')).toBe('true')
  })

  it('that cannot tell what it has done leaves the outcome unknown', async () => {
    const doubt = pipe(() => {
      throw new OutcomeUnknownError()
    })
    const { send, runs } = await setup(platform, { params: [Body(doubt)] })
    expect((await send()).status).toBe(500)
    expect(problemOf(await send())).toEqual([409, 'idempotency_outcome_unknown'])
    expect(runs()).toBe(0)
  })

  it('that is slow lets no request in that was answered meanwhile', async () => {
    const [asked, checked] = [gate(), gate()]
    let isSlow = true
    const slow = pipe(async (value: unknown) => {
      if (!isSlow) return value
      isSlow = false
      asked.open()
      await checked.passed
      return value
    })
    // Stands behind our interceptor, and gives up once the pipe is asked.
    const impatient = {
      intercept: (_context: ExecutionContext, next: CallHandler) => {
        if (!isSlow) return next.handle()
        const refused = from(asked.passed).pipe(
          mergeMap(() => throwError(() => new BadRequestException('too slow'))),
        )
        return race(next.handle(), refused)
      },
    }
    const decorators = [UseInterceptors(impatient)]
    const { send, runs } = await setup(platform, { params: [Body(slow)], decorators })
    expect((await send()).status).toBe(400)
    expect(text(await send())).toBe('run 1')
    checked.open()
    await turns()
    expect(runs()).toBe(1)
  })
})

it('keeps name, length and metadata of the methods that it watches', async () => {
  const controller = controllerOf({
    create: { decorators: [Idempotent(), SetMetadata('own', 7)], handle: () => 'done' },
  })
  const methods = controller.prototype as Record<string, (...args: unknown[]) => unknown>
  const { create } = methods
  await serveNest({ platform: 'express', controllers: [controller] })
  const watched = methods['create']!
  expect(watched).not.toBe(create)
  expect([watched.name, watched.length]).toEqual([create!.name, create!.length])
  expect(Reflect.getMetadata('own', watched)).toBe(7)
  // Once, however many apps it is served by.
  await serveNest({ platform: 'express', controllers: [controller] })
  expect(methods['create']).toBe(watched)
})

it.each(PLATFORMS)('watches inherited methods on %s', async (platform) => {
  let isValid = false
  const check = pipe((value: unknown) => {
    if (!isValid) throw new BadRequestException('no')
    return value
  })
  const parent = controllerOf({ create: { params: [Body(check)], handle: () => 'done' } })
  const child = controllerOf({}, [Idempotent()])
  Object.setPrototypeOf(child, parent)
  Object.setPrototypeOf(child.prototype, parent.prototype as object)
  const { send } = await serveNest({ platform, controllers: [child] })
  expect((await send({ key: 'k', json: {} })).status).toBe(400)
  isValid = true
  expect(text(await send({ key: 'k', json: {} }))).toBe('done')
  expect(header(await send({ key: 'k', json: {} }), 'idempotent-replayed')).toBe('true')
})
