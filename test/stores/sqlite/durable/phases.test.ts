import { expect, it } from 'vitest'
import { systemClock } from '../../../../src/core/time/clock.ts'
import { StoreFailedError } from '../../../../src/core/errors.ts'
import type { Lease } from '../../../../src/core/store/store.ts'
import { intentOf, operationOf } from '../../../../src/testing/durable-cases/durable-case.ts'
import { bytes, hold } from '../../../../src/testing/store-cases/store-case.ts'
import { isPending, openTransaction, setup } from '../setup.ts'

const STEPS = 50

async function setupSteps() {
  const { store, app } = setup({ clock: systemClock })
  const keys = Array.from({ length: STEPS }, (_, n) => `k-${n}`)
  const leases = await Promise.all(keys.map((key) => hold(store, { key })))
  const intend = (lease: Lease, phase = intentOf()) =>
    store.durable.phases.record(lease, { operation: operationOf(), phase })
  return { store, app, leases, intend }
}

/** Turns of the event loop until the call ends. There is one between any two commits. */
async function roundsOf(call: Promise<unknown>): Promise<number> {
  const over = new AbortController()
  void call.finally(() => over.abort())
  let rounds = 0
  for (; !over.signal.aborted; rounds++) await new Promise((resolve) => setImmediate(resolve))
  return rounds
}

it('steps that wait for the same write turn share one commit', async () => {
  const { store, leases, intend } = await setupSteps()
  const all = Promise.all(leases.map((lease) => intend(lease)))
  expect(await roundsOf(all)).toBeLessThan(STEPS / 5)
  expect((await all).map(({ kind }) => kind)).toEqual(leases.map(() => 'advanced'))
  const others = await Promise.all(leases.map((lease) => store.read({ identity: lease.identity })))
  expect(others.map((view) => view?.recoveryPoint)).toEqual(leases.map(() => 'started'))
})

it('a step that cannot be stored fails alone, without its batch', async () => {
  const { leases, intend } = await setupSteps()
  const wrong = { ...intentOf(), number: 1.5 }
  const outcomes = await Promise.allSettled(
    leases.map((lease, n) => intend(lease, n === 7 ? wrong : intentOf())),
  )
  const failed = outcomes.flatMap((outcome, n) => (outcome.status === 'rejected' ? [n] : []))
  expect(failed).toEqual([7])
  expect(outcomes[7]).toMatchObject({ reason: { failure: 'rejected' } })
})

it('records steps that arrive during a write, and fences a lost lease', async () => {
  const { store, leases, intend } = await setupSteps()
  const open = await openTransaction(store, leases[0]!)
  const stale = { ...leases[1]!, token: 'f'.repeat(32) }
  const waiting = [intend(stale), ...leases.slice(1, 10).map((lease) => intend(lease))]
  expect(await isPending(Promise.race(waiting))).toBe(true)
  open.finish()
  const later = intend(leases[10]!)
  const kinds = (await Promise.all([...waiting, later])).map(({ kind }) => kind)
  expect(kinds).toEqual(['fenced', ...leases.slice(1, 11).map(() => 'advanced')])
  await open.outcome
})

it('writes large steps in several commits', async () => {
  const { leases, intend } = await setupSteps()
  const large = intentOf({ request: bytes('x'.repeat(1024 * 1024)) })
  const all = Promise.all(leases.slice(0, 20).map((lease) => intend(lease, large)))
  expect(await roundsOf(all)).toBeGreaterThanOrEqual(2)
  expect((await all).every(({ kind }) => kind === 'advanced')).toBe(true)
})

it('close waits for accepted steps, and later steps are refused', async () => {
  const { store, leases, intend } = await setupSteps()
  const accepted = Promise.all(leases.map((lease) => intend(lease)))
  const closed = store.close()
  await expect(intend(leases[0]!)).rejects.toBeInstanceOf(StoreFailedError)
  await closed
  expect((await accepted).every(({ kind }) => kind === 'advanced')).toBe(true)
})
