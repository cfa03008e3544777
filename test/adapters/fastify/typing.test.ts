/** Handlers keep the types of Fastify, and get those of the plugin. */
import type { FastifyContextConfig, FastifyInstance, FastifyRequest } from 'fastify'
import { expectTypeOf, it } from 'vitest'
import { singleTenant } from '../../../src/http/guard/guard-options.ts'
import {
  idempotency,
  idempotencyOf,
  type IdempotencyOptions,
  type HandlerContext,
  type RouteIdempotency,
} from '../../../src/adapters/fastify/index.ts'
import type { Engine } from '../../../src/core/engine/engine-contract.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { newApp } from '../run-fastify.ts'

interface Payment {
  Body: { amount: number }
  Params: { id: string }
  Reply: { 201: { paymentId: string } }
}

it('keeps the generics of a route', () => {
  const app = newApp()
  const store = memoryStore()
  app.register(idempotency, { store, tenant: singleTenant })
  app.post<Payment>(
    '/:id',
    { config: { idempotency: { keyRequired: false } } },
    (request, reply) => {
      expectTypeOf(request.body).toEqualTypeOf<{ amount: number }>()
      expectTypeOf(request.params.id).toBeString()
      expectTypeOf(request.idempotency).toEqualTypeOf<HandlerContext | undefined>()
      expectTypeOf(idempotencyOf(request)).toEqualTypeOf<HandlerContext>()
      // @ts-expect-error: paymentId is a string
      void reply.code(201).send({ paymentId: 7 })
      void reply.code(201).send({ paymentId: 'p' })
    },
  )
})

it('checks the options of the plugin and of routes', () => {
  const app = newApp()
  const store = memoryStore()
  // @ts-expect-error: a tenant is required
  app.register(idempotency, { store })
  app.register(idempotency, {
    store,
    tenant: (request) => {
      expectTypeOf(request).toEqualTypeOf<FastifyRequest>()
      return request.ip
    },
  })
  // @ts-expect-error: keyRequired is a boolean
  app.post('/a', { config: { idempotency: { keyRequired: 'no' } } }, () => 'a')
  app.post('/b', { config: { idempotency: false } }, () => 'b')
  expectTypeOf<FastifyContextConfig['idempotency']>().toEqualTypeOf<
    RouteIdempotency | false | undefined
  >()
  expectTypeOf<FastifyInstance['idempotency']['engine']>().toEqualTypeOf<Engine>()
  expectTypeOf<Parameters<IdempotencyOptions['tenant']>>().toEqualTypeOf<[FastifyRequest]>()
})
