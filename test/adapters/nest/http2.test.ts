import type { AddressInfo } from 'node:net'
import { expect, it, onTestFinished, vi } from 'vitest'
import { Idempotent } from '../../../src/adapters/nest/index.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { http2Client } from '../node-http/run-http2.ts'
import { controllerOf, createNest } from '../run-nest.ts'

it('refuses a protected request over HTTP/2 before it claims the key', async () => {
  const store = memoryStore()
  const claim = vi.spyOn(store, 'claim')
  const errors: unknown[] = []
  const pay = { decorators: [Idempotent()], handle: () => expect.fail('ran') }
  const app = await createNest({
    platform: 'fastify',
    fastify: { http2: true } as object,
    idempotency: { store },
    controllers: [controllerOf({ pay })],
    prepare: (made) =>
      made.useGlobalFilters({
        catch: (error: unknown, host) => {
          errors.push(error)
          host.switchToHttp().getResponse<{ code(status: number): Sent }>().code(500).send('failed')
        },
      }),
  })
  onTestFinished(() => app.close())
  await app.listen(0, '127.0.0.1')

  const { port } = app.getHttpServer().address() as AddressInfo
  expect(await http2Client(port).send()).toMatchObject({ status: 500, body: 'failed' })
  expect(errors.map(String)).toEqual([expect.stringContaining('let a proxy speak HTTP/2')])
  expect(claim).not.toHaveBeenCalled()
})

interface Sent {
  send(body: string): void
}
