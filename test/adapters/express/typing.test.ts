import express, {
  type NextFunction,
  type Request,
  type RequestHandler,
  type Response,
} from 'express'
import { expectTypeOf, it } from 'vitest'
import {
  auditRoutes,
  idempotencyOf,
  type HandlerContext,
  type IdempotencyMiddleware,
  type RouteAudit,
  type RouteOptions,
} from '../../../src/adapters/express/index.ts'
import type { Engine } from '../../../src/index.ts'
import { guardOf } from '../run-express.ts'

it('keeps the types of handlers behind the guard', () => {
  const app = express()
  const guard = guardOf()
  expectTypeOf(guard).toExtend<RequestHandler>()
  app.post('/payments/:id', guard, (req, res, next) => {
    expectTypeOf(req.params.id).toEqualTypeOf<string>()
    expectTypeOf(req.idempotency).toEqualTypeOf<HandlerContext | undefined>()
    expectTypeOf(res).toExtend<Response>()
    expectTypeOf(next).toEqualTypeOf<NextFunction>()
  })
  const typed: RequestHandler<{ id: string }, { ok: boolean }, { amount: number }> = (req, res) => {
    expectTypeOf(req.body.amount).toEqualTypeOf<number>()
    res.json({ ok: true })
  }
  app.post('/typed/:id', guard, typed)
  app.use(guard)
  express
    .Router()
    .use(guard)
    .patch('/', guard, typed as RequestHandler)
})

it('types the engine of a guard and the options of with()', () => {
  const guard = guardOf()
  expectTypeOf(guard.engine).toEqualTypeOf<Engine>()
  expectTypeOf(guard.with).parameter(0).toEqualTypeOf<RouteOptions<Request>>()
  expectTypeOf(guard.with({ keyRequired: false })).toEqualTypeOf<IdempotencyMiddleware>()
  // @ts-expect-error: no such option
  if (guard.engine.isClosed) guard.with({ keyRequird: false })
  expectTypeOf(idempotencyOf).returns.toEqualTypeOf<HandlerContext>()
  expectTypeOf(auditRoutes).returns.toEqualTypeOf<RouteAudit>()
})

it('accepts a reply, a promise of one, or nothing from a transaction', () => {
  type Work = Parameters<HandlerContext['transaction']>[0]
  expectTypeOf<() => { status: number; body: unknown }>().toExtend<Work>()
  expectTypeOf<() => Promise<{ status: number; headers: { Location: string } }>>().toExtend<Work>()
  expectTypeOf<() => void>().toExtend<Work>()
  expectTypeOf<() => Promise<void>>().toExtend<Work>()
  expectTypeOf<() => string>().not.toExtend<Work>()
})
