/**
 * A process that works on one SQLite file until it is done or killed. It writes one line for every
 * fact that it knows to be recorded, immediately.
 */
import { writeSync } from 'node:fs'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import type { Lease } from '../../src/core/store/store.ts'
import { sqliteStore, type SqliteStore } from '../../src/stores/sqlite/index.ts'
import {
  bytes,
  claimRequest,
  claimRequests,
  completeOf,
  hold,
  ofKind,
  only,
  releaseOf,
  RETENTION_MS,
  settle,
} from '../../src/testing/store-cases/store-case.ts'
import { seededRandom } from './random.ts'

/** Longer than any test: only the kill matters, not the speed of the machine. */
const LEASE_MS = 60_000

const report = (line: string) => writeSync(1, `${line}\n`)

function pay(store: SqliteStore, lease: Lease, key: string) {
  return store.transaction(lease, async (tx) => {
    tx.prepare('INSERT INTO payment (key) VALUES (?)').run(key)
    // Half of the payments hold the write lock across an await, so that a kill can hit it.
    if (lease.token < '8') await new Promise((resolve) => setImmediate(resolve))
    return { result: bytes(`paid ${key}`), retentionMs: RETENTION_MS }
  })
}

/** Claims all keys concurrently with the other processes, and pays for each that it wins. */
async function race(store: SqliteStore, count: number): Promise<void> {
  report('ready')
  await once(process.stdin, 'data')
  for (const request of claimRequests(count, { leaseMs: LEASE_MS })) {
    const outcome = only(await store.claim([request]))
    if (outcome.kind !== 'claimed') continue
    ofKind(await pay(store, outcome.lease, request.key), 'settled')
    report(request.key)
  }
  await store.close()
}

/** Holds one key of each lapse policy, opens a transaction on the last, and then does nothing. */
async function holdUntilKilled(store: SqliteStore): Promise<void> {
  await hold(store, { key: 'cautious', leaseMs: LEASE_MS })
  await hold(store, { key: 'forgotten', leaseMs: LEASE_MS })
  const lease = await hold(store, { key: 'repeatable', leaseMs: LEASE_MS, onLapse: 'rerun' })
  await store.transaction(lease, async (tx) => {
    tx.prepare('INSERT INTO payment (key) VALUES (?)').run('repeatable')
    report('held')
    return new Promise(() => {})
  })
}

/** Claims, pays, completes and releases new keys until it is killed. */
async function loop(store: SqliteStore, seed: number): Promise<void> {
  const random = seededRandom(seed)
  report('ready')
  for (let n = 0; ; n++) {
    const operation = random() < 0.6 ? 'pay' : 'note'
    const request = claimRequest({ operation, key: `${seed}-${n}`, leaseMs: LEASE_MS })
    const { lease } = ofKind(only(await store.claim([request])), 'claimed')
    if (operation === 'pay') {
      ofKind(await pay(store, lease, request.key), 'settled')
    } else if (random() < 0.2) {
      ofKind(await settle(store, releaseOf(lease)), 'settled')
      continue
    } else {
      ofKind(await settle(store, completeOf(lease, bytes(`noted ${request.key}`))), 'settled')
    }
    report(JSON.stringify({ identity: request.identity, operation, key: request.key }))
  }
}

/** Executes each line of its input, `<verb> <key>`, and reports the outcome. */
async function runCommands(store: SqliteStore): Promise<void> {
  const held = new Map<string, Lease>()
  const verbs: Readonly<Record<string, (key: string) => Promise<string>>> = {
    claim: async (key) => {
      const outcome = only(await store.claim([claimRequest({ key, leaseMs: LEASE_MS })]))
      if (outcome.kind === 'claimed') held.set(key, outcome.lease)
      return outcome.kind
    },
    complete: async (key) => (await settle(store, completeOf(held.get(key)!))).kind,
    pay: async (key) => (await pay(store, held.get(key)!, key)).kind,
  }
  report('ready')
  for await (const line of createInterface({ input: process.stdin })) {
    const [verb, key] = line.split(' ')
    report(await verbs[verb!]!(key!).catch(String))
  }
}

const [mode, path, number] = process.argv.slice(2)
const store = sqliteStore({ path: path! })
if (mode === 'race') await race(store, Number(number))
else if (mode === 'obey') await runCommands(store)
else if (mode === 'hold') await holdUntilKilled(store)
else await loop(store, Number(number))
process.stdin.destroy()
