import assert from 'node:assert/strict'
import type { DueOperation, DueQuery } from '../../core/store/durable-store.ts'
import { only, RETENTION_MS } from '../store-cases/store-case.ts'
import { begin, OPERATION, type DurableCase, type DurableFixture } from './durable-case.ts'
import { assertEachReached, manyTenants, releaseAll, times } from './waiting-work.ts'

const REFUND = { name: 'refund', version: 1 } as const

function due({ store }: DurableFixture, query: Partial<DueQuery> = {}): Promise<DueOperation[]> {
  return store.durable.phases.due({ operations: [OPERATION], limit: 100, ...query })
}

async function tenants(fixture: DurableFixture, query: Partial<DueQuery> = {}): Promise<string[]> {
  return (await due(fixture, query)).map(({ record }) => record.tenant).toSorted()
}

async function keys(fixture: DurableFixture, query: Partial<DueQuery> = {}): Promise<string[]> {
  return (await due(fixture, query)).map(({ record }) => record.key)
}

/** Adds operations of tenant `a` that are one second longer due than any later one. */
async function flood(fixture: DurableFixture, count: number): Promise<string[]> {
  const added = await releaseAll(fixture, times(count, { tenant: 'a' }))
  fixture.clock.advance(1000)
  return added
}

export const dueTurnCases: readonly DurableCase[] = [
  {
    name: 'lists one due operation of each tenant before the second of any',
    async run(fixture) {
      await flood(fixture, 5)
      await releaseAll(fixture, [{ tenant: 'b' }, { tenant: 'b' }, { tenant: 'c' }])
      assert.deepEqual(await tenants(fixture, { limit: 3 }), ['a', 'b', 'c'])
      const more = await due(fixture, { limit: 4 })
      assert.equal(new Set(more.map(({ record }) => record.tenant)).size, 3)
      assert.equal(new Set(more.map(({ record }) => record.recordId)).size, 4)
      assert.equal((await due(fixture)).length, 8)
    },
  },
  {
    name: 'lists the longest due operation of each tenant first',
    async run(fixture) {
      const { clock } = fixture
      const later = [{ tenant: 'b', afterMs: 30 }, { tenant: 'b', afterMs: 10 }, { tenant: 'a' }]
      const [, longestOfB, ofA] = await releaseAll(fixture, later)
      clock.advance(40)
      for (let call = 0; call < 3; call++) {
        const found = await keys(fixture, { limit: 2 })
        assert.deepEqual(found.toSorted(), [longestOfB!, ofA!].toSorted())
      }
    },
  },
  {
    name: 'lists one due operation of each requested name before the second of any',
    async run(fixture) {
      await flood(fixture, 5)
      await releaseAll(fixture, [{ tenant: 'a', run: REFUND }])
      const found = await due(fixture, { operations: [OPERATION, REFUND], limit: 2 })
      assert.deepEqual(found.map(({ name }) => name).toSorted(), ['pay', 'refund'])
    },
  },
  {
    name: 'reaches every tenant of every operation with calls of limit one',
    async run(fixture) {
      const operations = [OPERATION, { name: 'pay', version: 2 }, REFUND]
      await flood(fixture, 5)
      const works = ['a', 'b', 'c'].flatMap((tenant) =>
        operations.flatMap((run) => times(3, { tenant, run })),
      )
      await releaseAll(fixture, works)
      const pairs = new Set(works.map(({ tenant, run }) => `${run.name} ${run.version} ${tenant}`))
      await assertEachReached([...pairs], async () => {
        const { record, name, version } = only(await due(fixture, { operations, limit: 1 }))
        return `${name} ${version} ${record.tenant}`
      })
    },
  },
  {
    name: 'continues with the tenants after those that the previous call returned',
    async run(fixture) {
      const names = ['a', 'b', 'c', 'd', 'e']
      await flood(fixture, 5)
      await releaseAll(
        fixture,
        names.flatMap((tenant) => times(2, { tenant })),
      )
      const reached: string[] = []
      for (let call = 0; call < 3; call++) reached.push(...(await tenants(fixture, { limit: 2 })))
      assert.deepEqual([...new Set(reached)].toSorted(), names)
    },
  },
  {
    name: 'lists the operations of one tenant by due time while the other tenants are not due',
    async run(fixture) {
      const { clock } = fixture
      const others = ['0', 'b', 'c'].map((tenant) => ({ tenant, afterMs: 5000 }))
      await releaseAll(fixture, others)
      const added: string[] = []
      for (let n = 0; n < 4; n++) {
        added.push(only(await releaseAll(fixture, [{ tenant: 'a' }])))
        clock.advance(1)
      }
      for (let call = 0; call < 3; call++) {
        assert.deepEqual(await keys(fixture, { limit: 3 }), added.slice(0, 3))
        assert.deepEqual(await keys(fixture, { limit: 1 }), added.slice(0, 1))
      }
    },
  },
  {
    name: 'lists no operation of an excluded tenant, however long it waits',
    async run(fixture) {
      await flood(fixture, 150)
      await releaseAll(fixture, [{ tenant: 'b' }, { tenant: 'c' }])
      const withoutTenants = ['a', 'never heard of']
      assert.deepEqual(await tenants(fixture, { withoutTenants, limit: 5 }), ['b', 'c'])
      assert.deepEqual(await tenants(fixture, { withoutTenants: ['a', 'b'], limit: 5 }), ['c'])
      assert.deepEqual(await tenants(fixture, { withoutTenants: ['a', 'b', 'c'] }), [])
      assert.equal((await tenants(fixture, { withoutTenants: [], limit: 5 })).length, 5)
    },
  },
  {
    name: 'lists the next operation of a tenant after one that expired before it ran',
    async run(fixture) {
      const { clock } = fixture
      // Handed over and never run: after its expiry the operation waits for the reaper.
      const end = { kind: 'hand_over', afterMs: 0 } as const
      await begin(fixture, { tenant: 'b', key: 'abandoned' }, { end })
      clock.advance(1)
      const [next] = await releaseAll(fixture, [{ tenant: 'b' }])
      clock.advance(10 * RETENTION_MS)
      const works = [{ tenant: 'a' }, { tenant: 'c' }]
      const others = await releaseAll(fixture, works)
      const found = await keys(fixture, { limit: 3 })
      assert.deepEqual(found.toSorted(), [next!, ...others].toSorted())
      assert.deepEqual(await keys(fixture, { withoutTenants: ['a', 'c'], limit: 1 }), [next])
    },
  },
  {
    name: 'distinguishes tenants with almost the same name',
    async run(fixture) {
      const names = ['a', 'A', 'a ', 'ä', 'á', 'a\u0301', 'b']
      await releaseAll(fixture, [
        ...times(5, { tenant: 'a' }),
        ...names.map((tenant) => ({ tenant })),
      ])
      assert.deepEqual(await tenants(fixture, { limit: names.length }), names.toSorted())
      const left = names.filter((name) => name !== 'a')
      assert.deepEqual(await tenants(fixture, { withoutTenants: ['a'] }), left.toSorted())
    },
  },
  {
    name: 'lists one due operation in the first call among many tenants that are not due',
    async run(fixture) {
      const { clock } = fixture
      const waiting = manyTenants().map((tenant) => ({ tenant, afterMs: 5000 }))
      await releaseAll(fixture, waiting)
      const key = only(await releaseAll(fixture, [{ tenant: 'tenant-2', run: OPERATION }]))
      for (let call = 0; call < 3; call++)
        assert.deepEqual(await keys(fixture, { limit: 2 }), [key])
      assert.deepEqual(await keys(fixture, { withoutTenants: ['tenant-2'], limit: 2 }), [])
      clock.advance(5000)
      assert.equal((await due(fixture, { limit: 20 })).length, 20)
    },
  },
  {
    name: 'lists one due operation behind many waiting tenants when a busy tenant is excluded',
    async run(fixture) {
      await flood(fixture, 150)
      const names = manyTenants()
      const waiting = names.map((tenant) => ({ tenant, afterMs: 5000 }))
      await releaseAll(fixture, waiting)
      const last = names.toSorted().at(-1)!
      const key = only(await releaseAll(fixture, [{ tenant: `${last}-due` }]))
      const query = { withoutTenants: ['a'], limit: 2 }
      for (let call = 0; call < 3; call++) assert.deepEqual(await keys(fixture, query), [key])
      const without = { withoutTenants: ['a', `${last}-due`], limit: 2 }
      assert.deepEqual(await keys(fixture, without), [])
    },
  },
  {
    name: 'reaches every one of many tenants beside one with many due operations',
    async run(fixture) {
      await flood(fixture, 50)
      const names = manyTenants()
      await releaseAll(
        fixture,
        names.map((tenant) => ({ tenant })),
      )
      const reached = new Set<string>()
      // Twice the number of calls that a store needs when each call returns its limit.
      for (let call = 0; call < 14; call++) {
        for (const tenant of await tenants(fixture, { limit: 50 })) reached.add(tenant)
      }
      assert.deepEqual(
        names.filter((tenant) => !reached.has(tenant)),
        [],
      )
    },
  },
]
