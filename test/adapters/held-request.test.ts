import { once } from 'node:events'
import http, { type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import { expect, it, onTestFinished } from 'vitest'
import { hasQuietSocket, realSocketOf } from '../../src/adapters/held-socket.ts'
import { HeldRequest } from '../../src/adapters/request-body.ts'

/** A request whose body has not been read, and what makes its client go away. */
async function arrived() {
  const server = http.createServer()
  onTestFinished(() => void server.close())
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  const sent = http.request({ port, host: '127.0.0.1', method: 'POST' })
  sent.on('error', () => undefined)
  sent.end('{}')
  const [req] = (await once(server, 'request')) as [IncomingMessage]
  const leave = async () => {
    const closed = once(realSocketOf(req), 'close')
    sent.destroy()
    await closed
  }
  onTestFinished(() => void sent.destroy())
  return { req, leave }
}

it('shows a socket that is alive while it is held, and its own again', async () => {
  const { req, leave } = await arrived()
  const { socket, destroy } = req
  const held = new HeldRequest(req)
  expect(hasQuietSocket(req)).toBe(true)
  expect(realSocketOf(req)).toBe(socket)
  await leave()
  expect([req.socket.destroyed, socket.destroyed, req.destroyed]).toEqual([false, true, false])
  held.letGo()
  expect(req.socket).toBe(socket)
  expect(req.destroy).toBe(destroy)
  expect(req.destroyed).toBe(true)
})

it.each(['the inner', 'the outer'])('may be held twice, and let go by %s first', async (first) => {
  const { req, leave } = await arrived()
  const { socket, destroy } = req
  const [outer, inner] = [new HeldRequest(req), new HeldRequest(req)]
  expect(realSocketOf(req)).toBe(socket)
  await leave()
  const order = first === 'the inner' ? [inner, outer] : [outer, inner]
  order[0]!.letGo()
  expect([req.socket.destroyed, req.destroyed]).toEqual([false, false])
  order[1]!.letGo()
  expect([req.socket, req.destroyed]).toEqual([socket, true])
  if (first === 'the inner') expect(req.destroy).toBe(destroy)
  expect(hasQuietSocket(req)).toBe(false)
})

it('keeps a socket that somebody has put in its place', async () => {
  const { req } = await arrived()
  const held = new HeldRequest(req)
  const other = new (realSocketOf(req).constructor as new () => IncomingMessage['socket'])()
  req.socket = other
  held.letGo()
  expect(req.socket).toBe(other)
})
