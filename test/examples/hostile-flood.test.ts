import { DatabaseSync } from 'node:sqlite'
import { afterAll, beforeAll, expect, it, onTestFinished } from 'vitest'
import { startFlood } from '../../chaos/soak/flood.ts'
import { startService } from '../../chaos/soak/service-process.ts'
import { watchTenant } from '../../chaos/soak/watched-tenant.ts'
import { scratchFolder } from '../stores/scratch-folder.ts'
import { layOutPackage } from './payments-service.ts'

// tenant-a sends distinct keys as fast as it can, while tenant-b goes about its business. How long
// that takes is for `npm run soak -- --flood` to measure; here: that every answer is right.

const scratch = scratchFolder()
const root = scratch.file('package')
let folders = 0

beforeAll(() => layOutPackage(root), 60_000)
afterAll(scratch.remove)

async function setup(ratePerSecond: number) {
  const dataFolder = scratch.file(`data-${folders++}`)
  const env = { DATA_DIR: dataFolder, RATE_PER_SECOND: `${ratePerSecond}` }
  const service = await startService({ root, env })
  onTestFinished(service.kill)
  const recordsOf = (tenant: string): number => {
    const db = new DatabaseSync(`${dataFolder}/payments.db`, { readOnly: true, timeout: 5_000 })
    const sql = 'SELECT count(*) AS n FROM oncekey_record WHERE tenant = ?'
    const count = db.prepare(sql).get(tenant)?.['n']
    db.close()
    return Number(count)
  }
  return { service, recordsOf }
}

const sleep = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms))

/** Floods for a while, and until tenant-b has made this many payments beside it. */
async function flood(port: number, size: { connections: number; depth: number }) {
  const watched = watchTenant(port)
  const startedMs = performance.now()
  const running = await startFlood(port, size)
  let payments = 0
  await sleep(1_500)
  for (let look = 0; look < 100 && payments < 10; look++) {
    await sleep(100)
    payments += watched.take().count
  }
  const count = await running.stop()
  const seconds = (performance.now() - startedMs) / 1000
  await watched.stop()
  return { count, seconds, payments, faults: watched.faults }
}

it('turns a flood away at the limit of its tenant, and nobody else', async () => {
  const perSecond = 15
  const { service, recordsOf } = await setup(perSecond)
  const { count, seconds, payments, faults } = await flood(service.port, {
    connections: 20,
    depth: 10,
  })

  // No 429, no 503: not one answer to tenant-b that is not its payment.
  expect(faults).toEqual([])
  expect(payments).toBeGreaterThan(0)

  const { 201: paid = 0, 429: refused = 0, ...others } = count.statuses
  expect(others).toEqual({})
  expect(refused).toBeGreaterThan(paid)
  expect(count.retryAfters).toBe(refused)
  // The seconds of the limit are not ours: one may have begun before the flood and one ends after.
  expect(recordsOf('tenant-a')).toBeLessThanOrEqual(perSecond * (Math.ceil(seconds) + 1))
}, 60_000)

it('lets the other tenant through without a limit, too', async () => {
  const { service, recordsOf } = await setup(0)
  const { count, payments, faults } = await flood(service.port, { connections: 20, depth: 5 })
  expect(faults).toEqual([])
  expect(payments).toBeGreaterThan(0)
  expect(recordsOf('tenant-a')).toBeGreaterThan(0)
  expect(Object.keys(count.statuses).filter((status) => status !== '201')).toEqual([])
}, 60_000)
