/** Replies that Nest makes before the method of a controller is entered. */
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
import { Idempotent } from '../../../src/adapters/nest/index.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { OutcomeUnknownError } from '../../../src/core/errors.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { gate, header, problemOf, text, turns } from '../run-express.ts'
import { controllerOf, PLATFORMS, serveNest, type Platform, type RouteSpec } from '../run-nest.ts'

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

describe.each(PLATFORMS)('pipes on %s', (platform) => {
  it('releases the key when a pipe refuses the request', async () => {
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

  it('leaves the outcome unknown when a pipe throws OutcomeUnknownError', async () => {
    const doubt = pipe(() => {
      throw new OutcomeUnknownError()
    })
    const { send, runs } = await setup(platform, { params: [Body(doubt)] })
    expect((await send()).status).toBe(500)
    expect(problemOf(await send())).toEqual([409, 'idempotency_outcome_unknown'])
    expect(runs()).toBe(0)
  })

  it('does not enter the method when the request was answered while a pipe ran', async () => {
    const [called, checked] = [gate(), gate()]
    let isSlow = true
    const slow = pipe(async (value: unknown) => {
      if (!isSlow) return value
      isSlow = false
      called.open()
      await checked.passed
      return value
    })
    // Runs behind IdempotencyInterceptor, and stops waiting when the pipe is called.
    const impatient = {
      intercept: (_context: ExecutionContext, next: CallHandler) => {
        if (!isSlow) return next.handle()
        const refused = from(called.passed).pipe(
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

it('keeps the name, length and metadata of the methods that it wraps', async () => {
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
  // A second app does not wrap the method again.
  await serveNest({ platform: 'express', controllers: [controller] })
  expect(methods['create']).toBe(watched)
})

it.each(PLATFORMS)('wraps inherited methods on %s', async (platform) => {
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
