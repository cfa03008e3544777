import assert from 'node:assert/strict'
import type { DueUnknown, UnknownRequest } from '../../core/durable-store.ts'
import { OPERATION_LENGTH_MAX, TENANT_LENGTH_MAX } from '../../core/identity.ts'
import { claimRequest, LEASE_MS, ofKind, only } from '../store-cases/store-case.ts'
import { OPERATION, type DurableCase, type DurableFixture } from './durable-case.ts'
import { assertEachReached, doubtAll, longText, manyTenants, times } from './waiting-work.ts'

const AGAIN_MS = 1000
const REFUND = { name: 'refund', version: 1 } as const
/** No operation on record: the turns go by that of the scope. */
const PLAIN = { run: undefined, operation: 'POST /refunds' } as const

type Request = Partial<UnknownRequest>

function take({ store }: DurableFixture, request: Request = {}): Promise<DueUnknown[]> {
  return store.durable.desk.takeUnknown({ limit: 100, againMs: AGAIN_MS, ...request })
}

/** The operation that the turns of a record go by, and its tenant. */
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

/** Very much of one operation and tenant, due for longer than what comes now. */
async function flood(fixture: DurableFixture, count: number): Promise<void> {
  await doubtAll(fixture, times(count, { tenant: 'a' }))
  fixture.clock.advance(500)
}

const WAIT_MS = 5000

/** Operations with unknown records that wait for later: more than one call goes through. */
async function waitInOperations(fixture: DurableFixture): Promise<void> {
  const operations = Array.from({ length: 150 }, (_, n) => `GET /${n}`)
  await doubtAll(
    fixture,
    operations.map((operation) => {
      return { tenant: 'b', run: undefined, operation, afterMs: WAIT_MS }
    }),
  )
}

export const unknownTurnCases: readonly DurableCase[] = [
  {
    name: 'gives one unknown record of each operation before the second of any',
    async run(fixture) {
      await flood(fixture, 5)
      const version2 = { tenant: 'a', run: { name: 'pay', version: 2 } }
      await doubtAll(fixture, [{ tenant: 'a', run: REFUND }, { tenant: 'a', ...PLAIN }, version2])
      const expected = ['POST /refunds  a', 'pay 1 a', 'pay 2 a', 'refund 1 a']
      assert.deepEqual(await takeTurns(fixture, { limit: 4 }), expected)
    },
  },
  {
    name: 'gives one unknown record of each tenant of an operation before the second of any',
    async run(fixture) {
      await flood(fixture, 5)
      await doubtAll(fixture, [{ tenant: 'b' }, { tenant: 'b' }, { tenant: 'c' }])
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
      await doubtAll(fixture, works)
      const turns = works.map(({ tenant, run }) => {
        return run === undefined ? `POST /refunds  ${tenant}` : `${run.name} 1 ${tenant}`
      })
      const left = new Map(turns.map((turn) => [turn, turn === 'pay 1 a' ? 21 : 1]))
      await assertEachReached(turns, async () => {
        const turn = turnOf(only(await take(fixture, { limit: 1 })))
        left.set(turn, left.get(turn)! - 1)
        assert.ok(left.get(turn)! >= 0, `${turn} was given before it was due again`)
        return turn
      })
    },
  },
  {
    name: 'counts a try on the unknown records that it gives, and leaves the others as they are',
    async run(fixture) {
      const { store, clock } = fixture
      await doubtAll(fixture, [...times(3, { tenant: 'a' }), { tenant: 'b' }])
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
    name: 'gives no unknown record of an operation that is left out',
    async run(fixture) {
      await flood(fixture, 150)
      const pay = { tenant: 'a', run: undefined, operation: 'pay' }
      const version2 = { tenant: 'a', run: { name: 'pay', version: 2 } }
      await doubtAll(fixture, [pay, version2, { tenant: 'b' }])
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
    name: 'leaves out by the operation of the scope only what has no operation on record',
    async run(fixture) {
      const scope = { tenant: 'a', operation: 'pay' }
      await doubtAll(fixture, [
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
    name: 'gives no unknown record of a tenant that is left out',
    async run(fixture) {
      await flood(fixture, 150)
      await doubtAll(fixture, [
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
    name: 'gives unknown records whose names are as long as they may be, and those beside them',
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
      // More than are asked for, so that they are given in turns.
      const named = { name: longText(255), version: 1 }
      const escaped = String.raw`\x \\ \ ' 😀`
      await doubtAll(fixture, [
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
    name: 'gives unknown records behind very many operations that wait, beside one that has most',
    async run(fixture) {
      const rounds = Array.from({ length: 5 }, (_, n) => `GET /quiet/${n}`)
      const callsMax = 6
      await flood(fixture, rounds.length * callsMax * 10)
      await waitInOperations(fixture)
      for (const operation of rounds) {
        const key = only(await doubtAll(fixture, [{ tenant: 'a', run: undefined, operation }]))
        const taken = new Set<string>()
        for (let call = 0; call < callsMax && !taken.has(key); call++) {
          for (const one of await takeKeys(fixture, { limit: 10 })) taken.add(one)
        }
        assert.ok(taken.has(key), `${operation} was not reached within ${callsMax} calls`)
      }
    },
  },
  {
    name: 'gives one unknown record behind very many that wait, where a flood is left out',
    async run(fixture) {
      await flood(fixture, 150)
      const names = manyTenants()
      await doubtAll(
        fixture,
        names.map((tenant) => ({ tenant, afterMs: WAIT_MS })),
      )
      await waitInOperations(fixture)
      const tenant = `${names.toSorted().at(-1)!}-due`
      const due = [{ tenant }, { tenant, run: undefined, operation: 'GET /due' }]
      const keys = await doubtAll(fixture, due)
      const request = { withoutTenants: ['a'], limit: 1 }
      const taken = [...(await takeKeys(fixture, request)), ...(await takeKeys(fixture, request))]
      assert.deepEqual(taken.toSorted(), keys.toSorted())
      assert.deepEqual(await takeKeys(fixture, request), [])
      const key = only(await doubtAll(fixture, [due[1]!]))
      assert.deepEqual(await takeKeys(fixture, { withoutOperations: [OPERATION] }), [key])
    },
  },
  {
    name: 'gives one unknown record at once among very many tenants that wait for later',
    async run(fixture) {
      const tenants = manyTenants()
      const waiting = tenants.map((tenant) => ({ tenant, afterMs: 5000 }))
      await doubtAll(fixture, waiting)
      const key = only(await doubtAll(fixture, [{ tenant: 'tenant-2', run: OPERATION }]))
      assert.deepEqual(await takeKeys(fixture, { withoutTenants: ['tenant-2'], limit: 2 }), [])
      assert.deepEqual(await takeKeys(fixture, { limit: 2 }), [key])
      assert.deepEqual(await takeKeys(fixture, { limit: 2 }), [])
    },
  },
  {
    name: 'gives one unknown record at once among very many operations that wait for later',
    async run(fixture) {
      const operations = Array.from({ length: 300 }, (_, n) => `GET /${n}`)
      const waiting = operations.map((operation) => {
        return { tenant: 'a', run: undefined, operation, afterMs: 5000 }
      })
      await doubtAll(fixture, waiting)
      const due = { tenant: 'a', run: undefined, operation: 'GET /2' }
      const key = only(await doubtAll(fixture, [due]))
      const withoutOperations = [{ name: 'GET /2', version: undefined }]
      assert.deepEqual(await takeKeys(fixture, { withoutOperations, limit: 2 }), [])
      assert.deepEqual(await takeKeys(fixture, { limit: 2 }), [key])
      assert.deepEqual(await takeKeys(fixture, { limit: 2 }), [])
    },
  },
]
