import assert from 'node:assert/strict'
import type { DueUnknown, UnknownRequest } from '../../core/store/operator-store.ts'
import { OPERATION_LENGTH_MAX, TENANT_LENGTH_MAX } from '../../core/record/identity.ts'
import { claimRequest, LEASE_MS, ofKind, only } from '../store-cases/store-case.ts'
import { OPERATION, type DurableCase, type DurableFixture } from './durable-case.ts'
import { assertEachReached, makeAllUnknown, longText, manyTenants, times } from './waiting-work.ts'

const AGAIN_MS = 1000
const REFUND = { name: 'refund', version: 1 } as const
/** A record without an operation takes turns by the operation of its scope. */
const PLAIN = { run: undefined, operation: 'POST /refunds' } as const

type Request = Partial<UnknownRequest>

function take({ store }: DurableFixture, request: Request = {}): Promise<DueUnknown[]> {
  return store.durable.operator.takeUnknown({ limit: 100, againMs: AGAIN_MS, ...request })
}

/** The operation by which a record takes turns, and its tenant. */
function turnOf({ record, operation }: DueUnknown): string {
  const { name, version = '' } = operation ?? { name: record.operation }
  return `${name} ${version} ${record.tenant}`
}

async function takeTurns(fixture: DurableFixture, request: Request = {}): Promise<string[]> {
  return (await take(fixture, request)).map(turnOf).toSorted()
}

async function takeKeys(fixture: DurableFixture, request: Request = {}): Promise<string[]> {
  return (await take(fixture, request)).map(({ record }) => record.key)
}

/** Adds many records of one operation and tenant that are longer due than any later record. */
async function flood(fixture: DurableFixture, count: number): Promise<void> {
  await makeAllUnknown(fixture, times(count, { tenant: 'a' }))
  fixture.clock.advance(500)
}

const WAIT_MS = 5000

/** Adds unknown records, not yet due, of more operations than one call reads. */
async function waitInOperations(fixture: DurableFixture): Promise<void> {
  const operations = Array.from({ length: 150 }, (_, n) => `GET /${n}`)
  await makeAllUnknown(
    fixture,
    operations.map((operation) => {
      return { tenant: 'b', run: undefined, operation, afterMs: WAIT_MS }
    }),
  )
}

export const unknownTurnCases: readonly DurableCase[] = [
  {
    name: 'takes one unknown record of each operation before the second of any',
    async run(fixture) {
      await flood(fixture, 5)
      const version2 = { tenant: 'a', run: { name: 'pay', version: 2 } }
      await makeAllUnknown(fixture, [
        { tenant: 'a', run: REFUND },
        { tenant: 'a', ...PLAIN },
        version2,
      ])
      const expected = ['POST /refunds  a', 'pay 1 a', 'pay 2 a', 'refund 1 a']
      assert.deepEqual(await takeTurns(fixture, { limit: 4 }), expected)
    },
  },
  {
    name: 'takes one unknown record of each tenant of an operation before the second of any',
    async run(fixture) {
      await flood(fixture, 5)
      await makeAllUnknown(fixture, [{ tenant: 'b' }, { tenant: 'b' }, { tenant: 'c' }])
      assert.deepEqual(await takeTurns(fixture, { limit: 3 }), ['pay 1 a', 'pay 1 b', 'pay 1 c'])
      assert.equal((await take(fixture)).length, 5)
    },
  },
  {
    name: 'reaches every operation and tenant with calls for one unknown record each',
    async run(fixture) {
      await flood(fixture, 20)
      const works = ['a', 'b', 'c'].flatMap((tenant) => [
        { tenant, run: OPERATION },
        { tenant, run: REFUND },
        { tenant, ...PLAIN },
      ])
      await makeAllUnknown(fixture, works)
      const turns = works.map(({ tenant, run }) => {
        return run === undefined ? `POST /refunds  ${tenant}` : `${run.name} 1 ${tenant}`
      })
      const left = new Map(turns.map((turn) => [turn, turn === 'pay 1 a' ? 21 : 1]))
      await assertEachReached(turns, async () => {
        const turn = turnOf(only(await take(fixture, { limit: 1 })))
        left.set(turn, left.get(turn)! - 1)
        assert.ok(left.get(turn)! >= 0, `${turn} was taken before it was due again`)
        return turn
      })
    },
  },
  {
    name: 'counts a try on the unknown records that it takes, and on no others',
    async run(fixture) {
      const { store, clock } = fixture
      await makeAllUnknown(fixture, [...times(3, { tenant: 'a' }), { tenant: 'b' }])
      const taken = await take(fixture, { limit: 2 })
      for (const { record } of taken) {
        assert.equal(record.tries, 1)
        assert.deepEqual(record.reconcileAt, new Date(clock.nowMs() + AGAIN_MS))
      }
      const all = await store.list({ state: 'unknown', limit: 10 })
      const untouched = all.filter(({ tries }) => tries === 0)
      assert.equal(untouched.length, 2)
      const keys = untouched.map(({ key }) => key).toSorted()
      assert.deepEqual((await takeKeys(fixture)).toSorted(), keys)
      clock.advance(AGAIN_MS - 1)
      assert.deepEqual(await take(fixture), [])
      clock.advance(1)
      const again = await take(fixture)
      assert.deepEqual(
        again.map(({ record }) => record.tries),
        [2, 2, 2, 2],
      )
    },
  },
  {
    name: 'takes no unknown record of an excluded operation',
    async run(fixture) {
      await flood(fixture, 150)
      const pay = { tenant: 'a', run: undefined, operation: 'pay' }
      const version2 = { tenant: 'a', run: { name: 'pay', version: 2 } }
      await makeAllUnknown(fixture, [pay, version2, { tenant: 'b' }])
      const withoutOperations = [OPERATION, { name: 'never heard of', version: 1 }]
      assert.deepEqual(await takeTurns(fixture, { withoutOperations, limit: 5 }), [
        'pay  a',
        'pay 2 a',
      ])
      assert.deepEqual(await take(fixture, { withoutOperations }), [])
      assert.equal((await take(fixture, { limit: 200 })).length, 151)
    },
  },
  {
    name: 'excludes a record by the operation of its scope only when it has no operation on record',
    async run(fixture) {
      const scope = { tenant: 'a', operation: 'pay' }
      await makeAllUnknown(fixture, [
        { ...scope, run: undefined },
        { ...scope, run: OPERATION },
        { ...scope, run: REFUND },
      ])
      const withoutOperations = [{ name: 'pay', version: undefined }]
      const taken = await takeTurns(fixture, { withoutOperations })
      assert.deepEqual(taken, ['pay 1 a', 'refund 1 a'])
      assert.deepEqual(await takeTurns(fixture), ['pay  a'])
    },
  },
  {
    name: 'takes no unknown record of an excluded tenant',
    async run(fixture) {
      await flood(fixture, 150)
      await makeAllUnknown(fixture, [
        { tenant: 'a', ...PLAIN },
        { tenant: 'b', ...PLAIN },
        { tenant: 'A' },
        { tenant: 'c' },
      ])
      const request = { withoutTenants: ['a', 'c'], limit: 5 }
      assert.deepEqual(await takeTurns(fixture, request), ['POST /refunds  b', 'pay 1 A'])
      assert.deepEqual(await take(fixture, request), [])
      assert.deepEqual(await takeTurns(fixture, { withoutTenants: ['a'] }), ['pay 1 c'])
    },
  },
  {
    name: 'takes unknown records with names of the longest allowed length, and those beside them',
    async run(fixture) {
      const { store, clock } = fixture
      const tenant = longText(TENANT_LENGTH_MAX)
      const operation = longText(OPERATION_LENGTH_MAX)
      const requests = [
        claimRequest({ tenant, operation, key: 'long' }),
        claimRequest({ key: 'short' }),
      ]
      for (const outcome of await store.claim(requests)) ofKind(outcome, 'claimed')
      clock.advance(LEASE_MS)
      assert.equal((await store.sweep({ limit: 10 })).length, 2)
      // More than the limit, so that they are taken in turns.
      const named = { name: longText(255), version: 1 }
      const escaped = String.raw`\x \\ \ ' 😀`
      await makeAllUnknown(fixture, [
        { tenant, operation, run: undefined },
        { tenant, operation, run: named },
        { tenant, operation: escaped, run: undefined },
      ])
      const taken = [...(await take(fixture, { limit: 3 })), ...(await take(fixture))]
      const names = taken.map((one) => one.operation?.name ?? one.record.operation)
      const expected = [operation, operation, named.name, 'POST /payments', escaped]
      assert.deepEqual(names.toSorted(), expected.toSorted())
    },
  },
  {
    name: 'takes unknown records behind many operations that are not due, beside a busy one',
    async run(fixture) {
      const rounds = Array.from({ length: 5 }, (_, n) => `GET /quiet/${n}`)
      const callsMax = 6
      await flood(fixture, rounds.length * callsMax * 10)
      await waitInOperations(fixture)
      for (const operation of rounds) {
        const key = only(
          await makeAllUnknown(fixture, [{ tenant: 'a', run: undefined, operation }]),
        )
        const taken = new Set<string>()
        for (let call = 0; call < callsMax && !taken.has(key); call++) {
          for (const one of await takeKeys(fixture, { limit: 10 })) taken.add(one)
        }
        assert.ok(taken.has(key), `${operation} was not reached within ${callsMax} calls`)
      }
    },
  },
  {
    name: 'takes one unknown record behind many that are not due when a busy operation is excluded',
    async run(fixture) {
      await flood(fixture, 150)
      const names = manyTenants()
      await makeAllUnknown(
        fixture,
        names.map((tenant) => ({ tenant, afterMs: WAIT_MS })),
      )
      await waitInOperations(fixture)
      const tenant = `${names.toSorted().at(-1)!}-due`
      const due = [{ tenant }, { tenant, run: undefined, operation: 'GET /due' }]
      const keys = await makeAllUnknown(fixture, due)
      const request = { withoutTenants: ['a'], limit: 1 }
      const taken = [...(await takeKeys(fixture, request)), ...(await takeKeys(fixture, request))]
      assert.deepEqual(taken.toSorted(), keys.toSorted())
      assert.deepEqual(await takeKeys(fixture, request), [])
      const key = only(await makeAllUnknown(fixture, [due[1]!]))
      assert.deepEqual(await takeKeys(fixture, { withoutOperations: [OPERATION] }), [key])
    },
  },
  {
    name: 'takes one unknown record at once among many tenants that are not due',
    async run(fixture) {
      const tenants = manyTenants()
      const waiting = tenants.map((tenant) => ({ tenant, afterMs: 5000 }))
      await makeAllUnknown(fixture, waiting)
      const key = only(await makeAllUnknown(fixture, [{ tenant: 'tenant-2', run: OPERATION }]))
      assert.deepEqual(await takeKeys(fixture, { withoutTenants: ['tenant-2'], limit: 2 }), [])
      assert.deepEqual(await takeKeys(fixture, { limit: 2 }), [key])
      assert.deepEqual(await takeKeys(fixture, { limit: 2 }), [])
    },
  },
  {
    name: 'takes one unknown record at once among many operations that are not due',
    async run(fixture) {
      const operations = Array.from({ length: 300 }, (_, n) => `GET /${n}`)
      const waiting = operations.map((operation) => {
        return { tenant: 'a', run: undefined, operation, afterMs: 5000 }
      })
      await makeAllUnknown(fixture, waiting)
      const due = { tenant: 'a', run: undefined, operation: 'GET /2' }
      const key = only(await makeAllUnknown(fixture, [due]))
      const withoutOperations = [{ name: 'GET /2', version: undefined }]
      assert.deepEqual(await takeKeys(fixture, { withoutOperations, limit: 2 }), [])
      assert.deepEqual(await takeKeys(fixture, { limit: 2 }), [key])
      assert.deepEqual(await takeKeys(fixture, { limit: 2 }), [])
    },
  },
]
