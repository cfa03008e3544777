/**
 * A process that works on one DynamoDB table until it is done or killed. It writes one line for
 * every fact, immediately after it learns it.
 */
import { once } from 'node:events'
import { writeSync } from 'node:fs'
import type { Store } from '../../src/core/store/store.ts'
import { dynamodbStore } from '../../src/stores/dynamodb/index.ts'
import {
  claim,
  claimRequests,
  completeOf,
  ofKind,
} from '../../src/testing/store-cases/store-case.ts'
import { lightClient } from './dynamodb-light-client.ts'

/** Longer than any test: only the winner matters, not the speed of the machine. */
const LEASE_MS = 60_000
const BATCH = 50

const report = (line: string) => writeSync(1, `${line}\n`)

/** Claims all keys concurrently with the other processes, and completes those that it wins. */
async function race(store: Store, count: number): Promise<void> {
  report('ready')
  await once(process.stdin, 'data')
  const requests = claimRequests(count, { leaseMs: LEASE_MS })
  for (let at = 0; at < count; at += BATCH) {
    const outcomes = await store.claim(requests.slice(at, at + BATCH))
    const leases = outcomes.flatMap((one) => (one.kind === 'claimed' ? [one.lease] : []))
    const settled = await store.settle(leases.map((lease) => completeOf(lease)))
    for (const outcome of settled) ofKind(outcome, 'settled')
    for (const [n, outcome] of outcomes.entries()) {
      if (outcome.kind === 'claimed') report(requests[at + n]!.key)
    }
  }
}

/** Claims one key until it gets it, and reports every change of the answer. */
async function claimUntilWon(store: Store, leaseMs: number): Promise<void> {
  report(String(process.pid))
  let told = ''
  while (told !== 'claimed') {
    const { kind } = await claim(store, { leaseMs, onLapse: 'rerun' })
    if (kind !== told) report(kind)
    told = kind
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

const [mode, endpoint, table, number] = process.argv.slice(2)
const client = lightClient(endpoint!)
const store = dynamodbStore({ client, table: table! })
if (mode === 'race') await race(store, Number(number))
else await claimUntilWon(store, Number(number))
client.destroy()
process.stdin.destroy()
