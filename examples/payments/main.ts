/**
 * A payments API that is safe to retry, on one SQLite file. `npm start` runs it.
 *
 * This file reads the environment, starts the service, and stops it without cutting a payment in
 * two. What the API does is in `app.ts`.
 */
import { once } from 'node:events'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { createEngine, type Engine } from 'oncekey'
import { sqliteStore } from 'oncekey/sqlite'
import { createApp } from './app.ts'
import { readSettings } from './settings.ts'
import { logEvent } from './log-event.ts'
import { openPayments } from './payments.ts'
import { welcome } from './welcome.ts'

/** Longer than any request takes; shorter than the 30 s after which platforms send SIGKILL. */
const GRACE_MS = 10_000

try {
  await start()
} catch (error) {
  console.error(error instanceof Error ? error.message : error)
  process.exit(1)
}

async function start(): Promise<void> {
  const { port, dataFolder } = readSettings(process.env)
  const path = join(dataFolder, 'payments.db')

  // The store first: it makes the folder and the file. Keys and payments share the file, so that
  // they can share a transaction.
  const store = sqliteStore({ path })
  const payments = openPayments(path)
  const engine = createEngine({ store, onEvent: logEvent })
  const server = createServer(createApp({ engine, payments }))
  endKeptConnections(server)

  const close = async (): Promise<void> => {
    await drain(server, engine)
    payments.close()
    await store.close()
  }
  try {
    await listen(server, port)
  } catch (error) {
    await close()
    throw error
  }
  console.log(welcome((server.address() as AddressInfo).port))

  // Once: a second Ctrl-C ends the process at once, as people expect.
  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    process.once(signal, () => {
      void close().then(() => process.exit(0))
    })
  }
}

/** Once the service stops, a connection that is kept for a next request ends with its reply. */
function endKeptConnections(server: Server): void {
  server.on('request', (_req, res) => {
    res.once('close', () => {
      if (!server.listening) server.closeIdleConnections()
    })
  })
}

async function listen(server: Server, port: number): Promise<void> {
  server.listen(port)
  try {
    await once(server, 'listening')
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'EADDRINUSE') {
      throw new Error(`Port ${port} is in use; set PORT to another one, or to 0 for any.`, {
        cause: error,
      })
    }
    throw error
  }
}

/**
 * Takes no new connections, lets the requests under way end, and then waits for handlers whose
 * clients have left: their work is recorded too, so a restart leaves no outcome unknown.
 */
async function drain(server: Server, engine: Engine): Promise<void> {
  if (server.listening) {
    const closed = once(server, 'close')
    server.close()
    await Promise.race([closed, sleep(GRACE_MS, undefined, { ref: false })])
  }
  const { abandoned } = await engine.close({ graceMs: GRACE_MS })
  if (abandoned > 0) console.error(`stopped with ${abandoned} requests unfinished`)
  server.closeAllConnections()
}
