/**
 * The two ratios the foundation is held to. Both sides of each are measured in turns within one
 * run and judged by their medians: a shared machine is too noisy for digits.
 *
 *   npm run bench:quick
 */
import { fork, type ChildProcess } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createEngine } from '../src/core/engine.ts'
import { sqliteStore } from '../src/stores/sqlite/sqlite-store.ts'
import { compete, IN_FLIGHT, oneByOne, pairsPerSecond, type Contest } from './contest.ts'
import { load } from './raw-client.ts'

const ROUNDS = { rounds: 7, roundMs: 1_000 }

async function main(): Promise<void> {
  let missed = 0
  for (const open of [batching, replays]) {
    const { contest, close } = await open()
    missed += Number(!(await compete(contest, ROUNDS)))
    await close()
  }
  process.exitCode = missed === 0 ? 0 : 1
}

interface Opened {
  readonly contest: Contest
  readonly close: () => Promise<void>
}

/** Claim and complete pairs on SQLite, synchronous FULL, in batches and one by one. */
async function batching(): Promise<Opened> {
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-bench-'))
  const stores = ['batched', 'single'].map((name) => sqliteStore({ path: join(folder, name) }))
  const batched = createEngine({ store: stores[0]! })
  const single = createEngine({ store: oneByOne(stores[1]!, 1) })
  const contest: Contest = {
    name: `SQLite FULL, ${IN_FLIGHT} callers in flight: pairs/s in batches against one by one`,
    target: { atLeast: 12 },
    ours: (ms) => pairsPerSecond(batched, ms),
    theirs: (ms) => pairsPerSecond(single, ms),
  }
  const close = async () => {
    for (const engine of [batched, single]) await engine.close()
    for (const store of stores) await store.close()
    rmSync(folder, { recursive: true, force: true })
  }
  return { contest, close }
}

/** Replays through the Express adapter against the bare route, in a server process of its own. */
async function replays(): Promise<Opened> {
  const server = fork(join(import.meta.dirname, 'express-server.ts'))
  const port = await portOf(server)
  const bare = request('/bare', randomUUID())
  const guarded = Array.from({ length: 64 }, () => request('/guarded', randomUUID()))
  const measure = async (ms: number, next: () => Buffer): Promise<number> => {
    const result = await load({ port, connections: IN_FLIGHT, ms, next })
    const others = [...result.statuses.keys()].filter((status) => status !== 201)
    if (others.length > 0) throw new Error(`unexpected status ${others.join(', ')}`)
    return result.perSecond
  }
  for (const bytes of guarded) await load({ port, connections: 1, ms: 0, next: () => bytes })
  const contest: Contest = {
    name: `Express on SQLite, ${IN_FLIGHT} connections: replays/s against the bare route`,
    target: { atLeast: 0.9 },
    ours: (ms) => measure(ms, () => guarded[Math.floor(Math.random() * guarded.length)]!),
    theirs: (ms) => measure(ms, () => bare),
  }
  const close = async () => {
    const ended = new Promise((resolve) => server.on('exit', resolve))
    server.disconnect()
    await ended
  }
  return { contest, close }
}

function portOf(server: ChildProcess): Promise<number> {
  return new Promise((resolve, reject) => {
    server.on('error', reject)
    server.on('exit', (code) => reject(new Error(`the server ended with code ${code}`)))
    server.on('message', (message: { port: number }) => resolve(message.port))
  })
}

function request(path: string, key: string): Buffer {
  const body = JSON.stringify({ customerId: 'cus_1', amountCents: 12_000, currency: 'KRW' })
  return Buffer.from(
    `POST ${path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n` +
      `Idempotency-Key: ${key}\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
  )
}

await main()
