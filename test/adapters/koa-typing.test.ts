/** What TypeScript knows of a Koa app must survive the guard. `npm run check` compiles this. */
import Koa, { type ParameterizedContext } from 'koa'
import { Router } from '@koa/router'
import { expect, expectTypeOf, it } from 'vitest'
import {
  idempotency,
  idempotencyOf,
  singleTenant,
  type HandlerContext,
  type IdempotencyMiddleware,
} from '../../src/adapters/koa.ts'
import { memoryStore } from '../../src/stores/memory/memory-store.ts'

interface State {
  account: string
}

interface Services {
  clock: () => number
}

const store = memoryStore()

it('gives every context an optional idempotency', () => {
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

it('mounts on apps and routers of any state and context, and keeps their types', () => {
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

it('shows options the state and context that they are told of', () => {
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
  // @ts-expect-error a tenant is always needed
  expect(() => idempotency({ store })).toThrow('tenant')
})
