import assert from 'node:assert/strict'
import { newToken } from '../../core/record/identity.ts'
import type { Lease, Settlement } from '../../core/store/store.ts'
import {
  assertBytes,
  bytes,
  claim,
  claimRequest,
  claimRequests,
  completeOf,
  doubtOf,
  hold,
  LEASE_MS,
  ofKind,
  releaseOf,
  RETENTION_MS,
  settle,
  viewOf,
  type StoreCase,
} from './store-case.ts'

const SETTLEMENTS: Readonly<Record<Settlement['kind'], (lease: Lease) => Settlement>> = {
  complete: (lease) => completeOf(lease),
  release: (lease) => releaseOf(lease),
  doubt: (lease) => doubtOf(lease),
}

/** Cases for every kind of settlement. */
function casesOfEach(): StoreCase[] {
  return Object.entries(SETTLEMENTS).flatMap(([kind, of]) => [
    {
      name: `answers a repeated ${kind} like the first one, and changes nothing`,
      async run({ store, clock }) {
        const lease = await hold(store)
        const first = await settle(store, of(lease))
        const before = await viewOf(store, lease)
        clock.advance(1000)
        assert.deepEqual(await settle(store, of(lease)), first)
        assert.deepEqual(await viewOf(store, lease), before)
      },
    },
    {
      name: `refuses a ${kind} with another token or attempt`,
      async run({ store }) {
        const lease = await hold(store)
        const before = await viewOf(store, lease)
        const fenced = { kind: 'fenced', own: false, state: 'in_progress' }
        assert.deepEqual(await settle(store, of({ ...lease, token: newToken() })), fenced)
        assert.deepEqual(await settle(store, of({ ...lease, attempt: 2 })), fenced)
        assert.deepEqual(await viewOf(store, lease), before)
      },
    },
    {
      name: `refuses a ${kind} from a holder whose key was taken over`,
      async run({ store, clock }) {
        const first = await hold(store, { onLapse: 'rerun' })
        clock.advance(LEASE_MS)
        const second = await hold(store)
        const outcome = await settle(store, of(first))
        assert.deepEqual(outcome, { kind: 'fenced', own: false, state: 'in_progress' })
        ofKind(await settle(store, completeOf(second)), 'settled')
      },
    },
    {
      name: `refuses a ${kind} of a key that was never claimed`,
      async run({ store }) {
        const { identity, token } = claimRequest()
        const outcome = await settle(store, of({ identity, token, attempt: 1 }))
        assert.deepEqual(outcome, { kind: 'fenced', own: false, state: 'absent' })
      },
    },
  ])
}

export const settleCases: readonly StoreCase[] = [
  ...casesOfEach(),
  {
    name: 'changes only the fields of the outcome when it completes a record',
    async run({ store, clock }) {
      const lease = await hold(store)
      const held = await viewOf(store, lease)
      clock.advance(1000)
      await settle(store, completeOf(lease, bytes('done')))
      const { result, ...view } = await viewOf(store, lease)
      assertBytes(result, bytes('done'))
      const { result: _none, ...before } = held
      assert.deepEqual(view, {
        ...before,
        state: 'completed',
        completedAt: new Date(clock.nowMs()),
        expiresAt: new Date(clock.nowMs() + RETENTION_MS),
      })
    },
  },
  {
    name: 'keeps the first of two results that one holder reports',
    async run({ store }) {
      const lease = await hold(store)
      await settle(store, completeOf(lease, bytes('first')))
      ofKind(await settle(store, completeOf(lease, bytes('second'))), 'settled')
      assertBytes(ofKind(await claim(store), 'completed').result, bytes('first'))
    },
  },
  {
    name: 'settles a batch in order, and applies the rest when one settlement is refused',
    async run({ store }) {
      const outcomes = await store.claim(claimRequests(4))
      const [a, b, c, d] = outcomes.map((outcome) => ofKind(outcome, 'claimed').lease)
      const settled = await store.settle([
        doubtOf(c!),
        completeOf({ ...b!, token: newToken() }),
        completeOf(a!),
        completeOf(a!),
        releaseOf(d!),
      ])
      assert.deepEqual(
        settled.map((outcome) => outcome.kind),
        ['settled', 'fenced', 'settled', 'settled', 'settled'],
      )
      const states = await Promise.all([a!, b!, c!, d!].map((lease) => viewOf(store, lease)))
      assert.deepEqual(
        states.map((view) => view.state),
        ['completed', 'in_progress', 'unknown', 'failed_retryable'],
      )
    },
  },
  {
    name: 'accepts a complete after the lease lapsed while the record is unchanged',
    async run({ store, clock }) {
      const lease = await hold(store)
      clock.advance(2 * LEASE_MS)
      ofKind(await settle(store, completeOf(lease)), 'settled')
    },
  },
  {
    name: 'releases by token alone when the answer to the claim was lost',
    async run({ store }) {
      const lease = await hold(store)
      const unknowing = { ...lease, attempt: 0 }
      const stranger = { ...unknowing, token: newToken() }
      ofKind(await settle(store, releaseOf(stranger)), 'fenced')
      ofKind(await settle(store, completeOf(unknowing)), 'fenced')
      ofKind(await settle(store, doubtOf(unknowing)), 'fenced')
      assert.equal((await viewOf(store, lease)).state, 'in_progress')
      ofKind(await settle(store, releaseOf(unknowing)), 'settled')
      assert.equal((await viewOf(store, lease)).state, 'failed_retryable')
    },
  },
  {
    name: 'reports the completed state to a release that follows a complete with the same token',
    async run({ store }) {
      const lease = await hold(store)
      await settle(store, completeOf(lease))
      const outcome = await settle(store, releaseOf(lease))
      assert.deepEqual(outcome, { kind: 'fenced', own: true, state: 'completed' })
      ofKind(await settle(store, doubtOf(lease)), 'fenced')
      ofKind(await claim(store), 'completed')
    },
  },
  {
    name: 'accepts a complete after a release with the same token, until the key is claimed again',
    async run({ store }) {
      const first = await hold(store)
      await settle(store, releaseOf(first))
      ofKind(await settle(store, completeOf(first)), 'settled')

      const other = await hold(store, { key: 'key-2' })
      await settle(store, releaseOf(other))
      await hold(store, { key: 'key-2' })
      ofKind(await settle(store, completeOf(other)), 'fenced')
    },
  },
  {
    name: 'records whether a release is proven or declared',
    async run({ store }) {
      for (const proof of ['proven', 'declared'] as const) {
        const lease = await hold(store, { key: proof })
        await settle(store, releaseOf(lease, proof))
        const view = await viewOf(store, lease)
        assert.deepEqual([view.state, view.proof], ['failed_retryable', proof])
      }
    },
  },
  {
    name: 'gives an unknown key to no claim, and reports when it is reconciled',
    async run({ store, clock }) {
      const lease = await hold(store)
      await settle(store, doubtOf(lease, 5000))
      clock.advance(2000)
      const outcome = ofKind(await claim(store), 'unknown')
      assert.deepEqual([outcome.reconcileInMs, outcome.lapsed], [3000, false])
      const view = await viewOf(store, lease)
      assert.deepEqual([view.state, view.errorCode], ['unknown', 'timed_out'])
    },
  },
]

export const renewCases: readonly StoreCase[] = [
  {
    name: 'extends a lease from the current time, not from its old end',
    async run({ store, clock }) {
      const lease = await hold(store)
      clock.advance(4000)
      assert.deepEqual(await store.renew([{ ...lease, leaseMs: LEASE_MS }]), [true])
      assert.equal(ofKind(await claim(store), 'in_progress').leaseLeftMs, LEASE_MS)
    },
  },
  {
    name: 'renews a lapsed lease that no other claim has taken',
    async run({ store, clock }) {
      const lease = await hold(store)
      clock.advance(2 * LEASE_MS)
      assert.deepEqual(await store.renew([{ ...lease, leaseMs: LEASE_MS }]), [true])
      ofKind(await claim(store), 'in_progress')
    },
  },
  {
    name: 'renews only held keys, and answers in the order of the batch',
    async run({ store, clock }) {
      const outcomes = await store.claim(claimRequests(5))
      const [a, b, c, d, e] = outcomes.map((outcome) => ofKind(outcome, 'claimed').lease)
      await store.settle([completeOf(c!), releaseOf(d!), doubtOf(e!)])
      clock.advance(1000)
      const { identity } = claimRequest({ key: 'never claimed' })
      const leases = [{ ...a!, token: newToken() }, { ...a!, attempt: 2 }, b!, c!, d!, e!]
      const renewed = await store.renew(
        [...leases, { ...a!, identity }, a!].map((lease) => ({ ...lease, leaseMs: LEASE_MS })),
      )
      assert.deepEqual(renewed, [false, false, true, false, false, false, false, true])
    },
  },
  {
    name: 'does not renew for a holder whose key was taken over',
    async run({ store, clock }) {
      const first = await hold(store, { onLapse: 'rerun' })
      clock.advance(LEASE_MS)
      const second = await hold(store)
      const leases = [first, second].map((lease) => ({ ...lease, leaseMs: LEASE_MS }))
      assert.deepEqual(await store.renew(leases), [false, true])
    },
  },
  {
    name: 'leaves the expiry unchanged when it renews a lease',
    async run({ store, clock }) {
      const lease = await hold(store)
      const { expiresAt } = await viewOf(store, lease)
      clock.advance(1000)
      await store.renew([{ ...lease, leaseMs: 10 * RETENTION_MS }])
      assert.deepEqual((await viewOf(store, lease)).expiresAt, expiresAt)
    },
  },
]
