import { expect, it, onTestFinished } from 'vitest'
import { guardedApp } from '../run-fastify.ts'

// A separate file, because Node prints each deprecation warning once per process.
it('uses no deprecated API under inject', async () => {
  const warnings: string[] = []
  const collect = ({ message }: Error) => void warnings.push(message)
  process.on('warning', collect)
  onTestFinished(() => void process.off('warning', collect))
  const app = await guardedApp()
  app.post('/', (request) => ({ isOpen: !request.raw.socket.destroyed }))
  const headers = { 'idempotency-key': 'key-1' }
  const reply = await app.inject({ method: 'POST', url: '/', headers, payload: { amount: 1 } })
  expect(reply.json()).toEqual({ isOpen: true })
  await new Promise((resolve) => setImmediate(resolve))
  expect(warnings).toEqual([])
})
