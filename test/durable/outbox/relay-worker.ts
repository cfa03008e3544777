/**
 * A process that relays until it is stopped or killed. For every event of a message, it writes one
 * line before it does anything else.
 */
import { once } from 'node:events'
import { appendFileSync, closeSync, openSync, unlinkSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { createRelay } from '../../../src/durable/outbox/relay.ts'
import type { MessageHandler, RelayMessage } from '../../../src/durable/outbox/relay-contract.ts'
import { openDatabase, type DatabaseKind } from './relay-databases.ts'

const [kind, location, folder, mode, leaseMs] = process.argv.slice(2) as [
  DatabaseKind,
  string,
  string,
  'work' | 'hang' | 'stall',
  string,
]

const report = (line: string) => writeSync(1, `${line}\n`)
const soon = () => new Promise((resolve) => setTimeout(resolve, Math.random() * 4))

/** Holds a file for each message while it runs, so that two runs at the same time would collide. */
async function work({ id, payload }: RelayMessage): Promise<void> {
  const path = join(folder, `${id}.running`)
  try {
    closeSync(openSync(path, 'wx'))
  } catch {
    report(`collision ${id}`)
    return
  }
  appendFileSync(join(folder, 'order.log'), `${id} ${JSON.stringify(payload)}\n`)
  await soon()
  unlinkSync(path)
}

/** Notes the provider id and never ends. */
async function hang({ id, attempt, downstreamKey, providerId, note }: RelayMessage): Promise<void> {
  report(`handling ${id} ${attempt} ${downstreamKey} ${providerId ?? 'none'}`)
  if (providerId !== undefined) return
  await note(`provider-of-${id}`)
  report(`noted ${id}`)
  await new Promise(() => {})
}

/** Suspends its process during a message, like a debugger or a hypervisor. */
async function stall({ id, attempt, signal }: RelayMessage): Promise<void> {
  report(`handling ${id} ${attempt} ${process.pid}`)
  process.kill(process.pid, 'SIGSTOP')
  if (!signal.aborted) await once(signal, 'abort')
  report(`aborted ${id}`)
}

const handlers: Record<typeof mode, MessageHandler> = { work, hang, stall }
const { store, close } = await openDatabase(kind, location)
const engine = createEngine({
  store,
  onEvent: (event) => {
    if ('messageId' in event) report(`${event.kind} ${event.messageId}`)
  },
})
const relay = createRelay({
  engine,
  topics: { t: handlers[mode] },
  concurrency: 8,
  leaseMs: Number(leaseMs),
  pollMs: 20,
})
const running = relay.run()
report('ready')
await once(process.stdin, 'data')
await relay.close()
await running
await engine.close()
await close()
process.stdin.destroy()
