/**
 * A process that runs operations on one SQLite file and relays their messages until it is killed.
 * It writes one line for every fact that it knows to be recorded, immediately.
 */
import { writeSync } from 'node:fs'
import { newToken } from '../../src/core/record/identity.ts'
import { sqliteStore, type SqliteTransaction } from '../../src/stores/sqlite/index.ts'
import {
  intentOf,
  messageOf,
  operationOf,
  resultOf,
  transactionOf,
} from '../../src/testing/durable-cases/durable-case.ts'
import {
  bytes,
  claimRequest,
  ofKind,
  only,
  releaseOf,
  RETENTION_MS,
  settle,
} from '../../src/testing/store-cases/store-case.ts'
import { seededRandom } from './random.ts'

const LEASE_MS = 60_000

const [path, seedText] = process.argv.slice(2)
const seed = Number(seedText)
const random = seededRandom(seed)
const store = sqliteStore({ path: path! })
const { phases, outbox } = store.durable

const report = (line: object) => writeSync(1, `${JSON.stringify(line)}\n`)

async function run(n: number): Promise<void> {
  const request = claimRequest({
    key: `${seed}-${n}`,
    leaseMs: LEASE_MS,
    retentionMs: 24 * 3600 * 1000,
    onLapse: 'resume',
  })
  const { lease, recordId } = ofKind(only(await store.claim([request])), 'claimed')
  const booked = await phases.advance(lease, async (given) => {
    const tx = given as SqliteTransaction
    tx.prepare('INSERT INTO payment (record_id) VALUES (?)').run(recordId)
    // Half of the runs hold the write lock across an await, so that a kill can hit it.
    if (random() < 0.5) await new Promise((resolve) => setImmediate(resolve))
    await outbox.add(tx, messageOf({ key: recordId, partition: `p${n % 3}` }))
    return { operation: operationOf(), phase: transactionOf({ name: 'book', number: 1 }) }
  })
  ofKind(booked, 'advanced')
  report({ recordId, reached: 'book' })
  if (random() < 0.2) {
    ofKind(await settle(store, releaseOf(lease)), 'settled')
    return
  }
  const downstreamKey = `key of ${recordId}`
  const intent = intentOf({ name: 'charge', number: 2, downstreamKey })
  ofKind(await phases.record(lease, { phase: intent }), 'advanced')
  report({ recordId, reached: 'intended' })
  const phase = resultOf({ name: 'charge', number: 2, downstreamKey, providerId: undefined })
  const end = { kind: 'complete', result: bytes('done'), retentionMs: RETENTION_MS } as const
  ofKind(await phases.record(lease, { phase, end }), 'advanced')
  report({ recordId, reached: 'done' })
}

async function relay(): Promise<void> {
  const request = { topics: ['receipts'], limit: 5, leaseMs: LEASE_MS, token: newToken() }
  for (const { id, token, key } of await outbox.claim(request)) {
    const [isDone] = await outbox.settle([{ id, token, kind: 'done', providerId: undefined }])
    if (isDone !== true) throw new Error('fenced although the lease is valid')
    report({ recordId: key, reached: 'relayed' })
  }
}

report({ reached: 'ready' })
for (let n = 0; ; n++) {
  await run(n)
  if (random() < 0.4) await relay()
}
