import { expect, it, onTestFinished } from 'vitest'
import { guardedApp } from './run-fastify.ts'

// In a file of its own: of what is deprecated, a process is warned once.
it('under inject uses nothing that is deprecated', async () => {
  const warnings: string[] = []
  const hear = ({ message }: Error) => void warnings.push(message)
  process.on('warning', hear)
  onTestFinished(() => void process.off('warning', hear))
  const app = await guardedApp()
  app.post('/', (request) => ({ isOpen: !request.raw.socket.destroyed }))
  const headers = { 'idempotency-key': 'key-1' }
  const reply = await app.inject({ method: 'POST', url: '/', headers, payload: { amount: 1 } })
  expect(reply.json()).toEqual({ isOpen: true })
  await new Promise((resolve) => setImmediate(resolve))
  expect(warnings).toEqual([])
})
