import { once } from 'node:events'
import http, { type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import { expect, it, onTestFinished } from 'vitest'
import { hasCapturedSocket } from '../../../src/adapters/node-http/captured-socket.ts'
import { realSocketOf } from '../../../src/adapters/node-http/live-socket.ts'
import { CapturedRequest } from '../../../src/adapters/node-http/captured-request.ts'

/** Returns a request whose body is unread, and a function that closes its connection. */
async function receiveRequest() {
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

it('a captured request shows a live socket until it is restored', async () => {
  const { req, leave } = await receiveRequest()
  const { socket, destroy } = req
  const captured = new CapturedRequest(req)
  expect(hasCapturedSocket(req)).toBe(true)
  expect(realSocketOf(req)).toBe(socket)
  await leave()
  expect([req.socket.destroyed, socket.destroyed, req.destroyed]).toEqual([false, true, false])
  captured.restore()
  expect(req.socket).toBe(socket)
  expect(req.destroy).toBe(destroy)
  expect(req.destroyed).toBe(true)
})

it.each(['inner', 'outer'])(
  'two captures of a request may end in any order, here the %s one first',
  async (first) => {
    const { req, leave } = await receiveRequest()
    const { socket, destroy } = req
    const [outer, inner] = [new CapturedRequest(req), new CapturedRequest(req)]
    expect(realSocketOf(req)).toBe(socket)
    await leave()
    const order = first === 'inner' ? [inner, outer] : [outer, inner]
    order[0]!.restore()
    expect([req.socket.destroyed, req.destroyed]).toEqual([false, false])
    order[1]!.restore()
    expect([req.socket, req.destroyed]).toEqual([socket, true])
    if (first === 'inner') expect(req.destroy).toBe(destroy)
    expect(hasCapturedSocket(req)).toBe(false)
  },
)

it('restoring a request keeps a socket that other code has set', async () => {
  const { req } = await receiveRequest()
  const captured = new CapturedRequest(req)
  const other = new (realSocketOf(req).constructor as new () => IncomingMessage['socket'])()
  req.socket = other
  captured.restore()
  expect(req.socket).toBe(other)
})
