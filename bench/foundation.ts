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
import { createEngine, type Engine } from '../src/core/engine.ts'
import type { Store } from '../src/core/store.ts'
import { sqliteStore } from '../src/stores/sqlite/sqlite-store.ts'
import { load } from './raw-client.ts'

const ROUNDS = 7
const ROUND_MS = 1_000
const IN_FLIGHT = 64
const FINGERPRINT = `v1:${'f'.repeat(43)}`
const RESULT = new Uint8Array(200).fill(120)

interface Contest {
  readonly name: string
  readonly target: number
  readonly ours: () => Promise<number>
  readonly theirs: () => Promise<number>
  readonly close: () => Promise<void>
}

async function main(): Promise<void> {
  const contests = [batching(), await replays()]
  let missed = 0
  for (const contest of contests) missed += Number(!(await compete(contest)))
  process.exitCode = missed === 0 ? 0 : 1
}

async function compete({ name, target, ours, theirs, close }: Contest): Promise<boolean> {
  console.log(`\n${name}`)
  const a: number[] = []
  const b: number[] = []
  await ours()
  await theirs()
  for (let round = 1; round <= ROUNDS; round++) {
    a.push(await ours())
    b.push(await theirs())
    console.log(
      `  round ${round}/${ROUNDS}: ${whole(a.at(-1)!)} against ${whole(b.at(-1)!)} a second`,
    )
  }
  await close()
  const ratios = a.map((value, index) => value / b[index]!)
  const ratio = median(a) / median(b)
  const spread = `${Math.min(...ratios).toFixed(2)} to ${Math.max(...ratios).toFixed(2)}`
  const verdict = ratio >= target ? 'reached' : 'MISSED'
  console.log(`  medians: ${whole(median(a))} against ${whole(median(b))} a second`)
  console.log(`  ratio ${ratio.toFixed(2)} (rounds ${spread}), target ${target}: ${verdict}`)
  return ratio >= target
}

/** Claim and complete pairs on SQLite, synchronous FULL, in batches and one by one. */
function batching(): Contest {
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-bench-'))
  const stores = ['batched', 'single'].map((name) => sqliteStore({ path: join(folder, name) }))
  const [batched, single] = stores.map((store, index) =>
    createEngine({ store: unbatched(store, index) }),
  )
  return {
    name: `SQLite FULL, ${IN_FLIGHT} callers in flight: pairs/s in batches against one by one`,
    target: 12,
    ours: () => pairsPerSecond(batched!),
    theirs: () => pairsPerSecond(single!),
    close: async () => {
      for (const engine of [batched!, single!]) await engine.close()
      for (const store of stores) await store.close()
      rmSync(folder, { recursive: true, force: true })
    },
  }
}

/** The second store takes one row a call. */
function unbatched(store: Store, index: number): Store {
  if (index === 0) return store
  return {
    name: store.name,
    batching: { rowsMax: 1, flushesMax: 1 },
    claim: (requests) => store.claim(requests),
    settle: (settlements) => store.settle(settlements),
    renew: (renewals) => store.renew(renewals),
    resolve: (verdicts) => store.resolve(verdicts),
    sweep: (request) => store.sweep(request),
    reap: (request) => store.reap(request),
    read: (ref) => store.read(ref),
    list: (query) => store.list(query),
  }
}

async function pairsPerSecond(engine: Engine): Promise<number> {
  const scope = { tenant: 'bench', operation: 'POST /payments' }
  const started = performance.now()
  const until = started + ROUND_MS
  let pairs = 0
  const caller = async (): Promise<void> => {
    while (performance.now() < until) {
      const request = { scope, key: randomUUID(), fingerprint: FINGERPRINT }
      const outcome = await engine.run(request, () => RESULT)
      if (outcome.kind !== 'ran') throw new Error(`expected ran, got ${outcome.kind}`)
      pairs++
    }
  }
  await Promise.all(Array.from({ length: IN_FLIGHT }, caller))
  return (pairs * 1000) / (performance.now() - started)
}

/** Replays through the Express adapter against the bare route, in a server process of its own. */
async function replays(): Promise<Contest> {
  const server = fork(join(import.meta.dirname, 'express-server.ts'))
  const port = await portOf(server)
  const bare = request('/bare', randomUUID())
  const guarded = Array.from({ length: 64 }, () => request('/guarded', randomUUID()))
  const measure = async (next: () => Buffer): Promise<number> => {
    const result = await load({ port, connections: IN_FLIGHT, ms: ROUND_MS, next })
    const others = [...result.statuses.keys()].filter((status) => status !== 201)
    if (others.length > 0) throw new Error(`unexpected status ${others.join(', ')}`)
    return result.perSecond
  }
  for (const bytes of guarded) await load({ port, connections: 1, ms: 0, next: () => bytes })
  return {
    name: `Express on SQLite, ${IN_FLIGHT} connections: replays/s against the bare route`,
    target: 0.9,
    ours: () => measure(() => guarded[Math.floor(Math.random() * guarded.length)]!),
    theirs: () => measure(() => bare),
    close: async () => {
      const ended = new Promise((resolve) => server.on('exit', resolve))
      server.disconnect()
      await ended
    },
  }
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

function median(values: readonly number[]): number {
  return values.toSorted((x, y) => x - y)[Math.floor(values.length / 2)]!
}

const whole = (value: number): string => Math.round(value).toLocaleString('en')

await main()
