import { expect, it } from 'vitest'
import type { HeldMessage } from '../../../../src/core/store/durable-store.ts'
import { newToken } from '../../../../src/core/record/identity.ts'
import type { MysqlStore } from '../../../../src/stores/mysql/index.ts'
import { useMariadb } from '../setup.ts'
import { countBy, fillPartitions } from './turn-fill.ts'

const setup = useMariadb()

/** Claims messages and settles them as done. */
async function relay(
  { durable: { outbox } }: MysqlStore,
  topics: readonly string[],
  limit: number,
): Promise<HeldMessage[]> {
  const held = await outbox.claim({ topics, limit, leaseMs: 60_000, token: newToken() })
  await outbox.settle(
    held.map(({ id, token }) => ({ kind: 'done', id, token, providerId: undefined })),
  )
  return held
}

it('gives each of 100 tenants with partitions the same number of turns', async () => {
  const { open, app } = await setup()
  const store = await open()
  const tenant = `CONCAT('t', LPAD(seq % 100, 3, '0'))`
  await fillPartitions(app, { topic: 'a', partitions: 600, tenant, each: 8 })
  const relayed: string[] = []
  for (let call = 0; call < 60; call++) {
    relayed.push(...(await relay(store, ['a'], 10)).map((one) => one.tenant ?? ''))
  }
  const counts = countBy(relayed)
  expect(counts.size).toBe(100)
  expect(new Set(counts.values())).toEqual(new Set([6]))
}, 60_000)

it('reads partitions of every topic, even if the first topic has many tenants', async () => {
  const { open, app } = await setup()
  const store = await open()
  const tenant = `CONCAT('t', LPAD(seq % 70, 3, '0'))`
  for (const topic of ['a', 'b']) {
    await fillPartitions(app, { topic, partitions: 700, tenant, each: 10 })
  }
  const relayed: string[] = []
  for (let call = 0; call < 20; call++) {
    relayed.push(...(await relay(store, ['a', 'b'], 80)).map(({ topic }) => topic))
  }
  expect(countBy(relayed).get('b')).toBeGreaterThan(20 * 25)
}, 60_000)

// The first eight partitions of the tenant are blocked, and 250 other tenants have their turns.
it('reaches the ninth partition of one tenant among hundreds', async () => {
  const { open, app } = await setup()
  const store = await open()
  const tenant = `CONCAT('t', LPAD(seq % 250, 3, '0'))`
  await fillPartitions(app, { topic: 'a', partitions: 750, tenant, each: 8, name: 'x' })
  const own = { topic: 'a', tenant: `'m'`, each: 1 }
  await fillPartitions(app, { ...own, partitions: 8, name: 'm', isDead: true })
  await fillPartitions(app, { ...own, partitions: 1, name: 'mz', dueAtMs: 2000 })
  let calls = 0
  // 40 calls are three rounds of all tenants.
  for (; calls < 40; calls++) {
    if ((await relay(store, ['a'], 20)).some((one) => one.tenant === 'm')) break
  }
  expect(calls).toBeLessThan(40)
}, 60_000)
