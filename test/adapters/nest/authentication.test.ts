/** The audit lists protected routes without an authentication guard of Nest. */
import { Injectable, Scope, UseGuards, type CanActivate, type Type } from '@nestjs/common'
import { APP_GUARD } from '@nestjs/core'
import { expect, it, onTestFinished } from 'vitest'
import { auditRoutes, Idempotent } from '../../../src/adapters/nest/index.ts'
import { controllerOf, createNest, type NestSpec } from '../run-nest.ts'

class Authentication implements CanActivate {
  canActivate(): boolean {
    return true
  }
}
Injectable()(Authentication)

class Lenient extends Authentication {}
Injectable()(Lenient)

class PerRequest extends Authentication {}
Injectable({ scope: Scope.REQUEST })(PerRequest)

async function openRoutes(
  spec: Partial<NestSpec>,
  authentication: object = Authentication,
): Promise<string[] | undefined> {
  const app = await createNest({ platform: 'express', ...spec })
  onTestFinished(() => app.close())
  await app.init()
  return auditRoutes(app, { authentication }).unauthenticated?.map(({ path }) => path)
}

const handle = () => 'paid'
const guardedBy = (...guards: Type<CanActivate>[]) => [Idempotent(), UseGuards(...guards)]
const plain = () => controllerOf({ pay: { path: 'pay', decorators: [Idempotent()], handle } })

it('lists routes without an authentication guard on the method or the controller', async () => {
  const methods = controllerOf({
    right: { path: 'right', decorators: guardedBy(Authentication), handle },
    none: { path: 'none', decorators: [Idempotent()], handle },
    lenient: { path: 'lenient', decorators: guardedBy(Lenient), handle },
  })
  const pay = { path: 'pay', decorators: [Idempotent()], handle }
  const whole = controllerOf({ pay }, [UseGuards(Authentication)], 'whole')
  const controllers = [methods, whole]
  expect(await openRoutes({ controllers })).toEqual(['/none', '/lenient'])
  expect(await openRoutes({ controllers }, [Authentication, Lenient])).toEqual(['/none'])
})

it('finds global guards that are instances, classes or request-scoped', async () => {
  const controllers = [plain()]
  expect(await openRoutes({ controllers })).toEqual(['/pay'])
  const guard = new Authentication()
  const prepare: NestSpec['prepare'] = (app) => app.useGlobalGuards(guard)
  expect(await openRoutes({ controllers, prepare })).toEqual([])
  expect(await openRoutes({ controllers, prepare }, guard)).toEqual([])
  const providers = [{ provide: APP_GUARD, useClass: Authentication }]
  expect(await openRoutes({ controllers, providers })).toEqual([])
  const perRequest = [{ provide: APP_GUARD, useClass: PerRequest }]
  expect(await openRoutes({ controllers, providers: perRequest }, PerRequest)).toEqual([])
})

it('omits unauthenticated when the audit has no authentication option', async () => {
  const app = await createNest({ platform: 'express', controllers: [plain()] })
  onTestFinished(() => app.close())
  expect(auditRoutes(app).unauthenticated).toBeUndefined()
})
