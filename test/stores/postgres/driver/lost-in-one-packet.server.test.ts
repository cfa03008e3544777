/**
 * A fake server sends the end of a query and the end of the connection in one packet, as a killed
 * server may do. A real server does not do so in every run.
 */
import { once } from 'node:events'
import { createServer, type AddressInfo } from 'node:net'
import pg from 'pg'
import { expect, it, onTestFinished } from 'vitest'
import { connectionsOf } from '../../../../src/stores/postgres/driver/pg-connections.ts'

const AUTHENTICATED = message('R', Buffer.from([0, 0, 0, 0]))
const READY = message('Z', Buffer.from('I'))
const DONE = message('C', Buffer.from('SELECT 0\0'))
const KILLED = message('E', Buffer.from('SFATAL\0C57P01\0Mterminating connection\0\0'))

function message(kind: string, body: Buffer): Buffer {
  const head = Buffer.alloc(5)
  head.write(kind)
  head.writeInt32BE(body.length + 4, 1)
  return Buffer.concat([head, body])
}

async function startKilledServer(): Promise<number> {
  const server = createServer((socket) => {
    socket.on('error', () => undefined)
    let isStarted = false
    socket.on('data', () => {
      socket.write(Buffer.concat(isStarted ? [DONE, READY, KILLED] : [AUTHENTICATED, READY]))
      isStarted = true
    })
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  onTestFinished(() => void server.close())
  return (server.address() as AddressInfo).port
}

// The first query ends, the pool passes its connection to the second, and the connection is lost.
it('survives the loss of a connection while the pool passes it to the next query', async () => {
  const port = await startKilledServer()
  const pool = new pg.Pool({ host: '127.0.0.1', port, user: 'a', password: 'b', max: 1 })
  pool.on('error', () => undefined)
  const connections = connectionsOf(pool)
  const first = pool.query('SELECT 1')
  const lent = await connections.lendIdle(undefined)
  await first
  await expect(lent.client.query('SELECT 1')).rejects.toThrow(/not queryable|terminat/)
  lent.giveBack(true)
  await pool.end()
})
