/** The guard keeps the types of a Koa app. `npm run check` compiles this file. */
import Koa, { type ParameterizedContext } from 'koa'
import { Router } from '@koa/router'
import { expect, expectTypeOf, it } from 'vitest'
import { singleTenant } from '../../../src/http/guard/guard-options.ts'
import {
  idempotency,
  idempotencyOf,
  type HandlerContext,
  type IdempotencyMiddleware,
} from '../../../src/adapters/koa/index.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'

interface State {
  account: string
}

interface Services {
  clock: () => number
}

const store = memoryStore()

it('types ctx.idempotency as optional on every context', () => {
  expectTypeOf<Koa.Context['idempotency']>().toEqualTypeOf<HandlerContext | undefined>()
  expectTypeOf<ParameterizedContext<State, Services>['idempotency']>().toEqualTypeOf<
    HandlerContext | undefined
  >()
  new Koa<State, Services>().use((ctx) => {
    expectTypeOf(ctx.idempotency).toEqualTypeOf<HandlerContext | undefined>()
    expectTypeOf(idempotencyOf).toBeCallableWith(ctx)
    expectTypeOf(ctx.clock).toEqualTypeOf<() => number>()
  })
})

it('mounts on apps and routers of any state and context and keeps their types', () => {
  const guard = idempotency({ store, tenant: singleTenant })
  expectTypeOf(guard).toEqualTypeOf<IdempotencyMiddleware>()

  const app = new Koa<State, Services>()
  app.use(guard).use((ctx) => {
    expectTypeOf(ctx.state.account).toEqualTypeOf<string>()
  })

  const router = new Router<State, Services>()
  router.post('/payments', guard, (ctx) => {
    expectTypeOf(ctx.state.account).toEqualTypeOf<string>()
    expectTypeOf(ctx.clock).toEqualTypeOf<() => number>()
    expectTypeOf(ctx.params).not.toBeNever()
  })
  router.use(guard)
})

it('types the context of option functions by the type arguments', () => {
  const guard = idempotency<State, Services>({
    store,
    tenant: (ctx) => {
      expectTypeOf(ctx.state).toEqualTypeOf<State>()
      expectTypeOf(ctx.clock).toEqualTypeOf<() => number>()
      expectTypeOf(ctx.get('x')).toEqualTypeOf<string>()
      return ctx.state.account
    },
  })
  expectTypeOf(guard.with({ keyRequired: false })).toEqualTypeOf<
    IdempotencyMiddleware<State, Services>
  >()
  guard.with({ operation: (ctx) => ctx.state.account })
  new Router<State, Services>().post('/payments', guard, (ctx) => {
    expectTypeOf(ctx.state.account).toEqualTypeOf<string>()
  })
  // @ts-expect-error a tenant is required
  expect(() => idempotency({ store })).toThrow('tenant')
})
