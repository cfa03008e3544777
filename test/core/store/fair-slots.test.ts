import { expect, it } from 'vitest'
import { FairSlots } from '../../../src/core/store/fair-slots.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { gate } from '../engine/engine-fixture.ts'

function setup({ slots = 1, waitingMax = 10 } = {}) {
  const clock = new FakeClock()
  const refusals: unknown[] = []
  const onRefusal = (error: unknown) => refusals.push(error)
  const names = { store: 'test', call: 'advance' }
  const fair = new FairSlots({ clock, ...names, slots, waitingMax, onRefusal })
  const begun: string[] = []
  const gates: { open: (value: string) => void; fail: (error: unknown) => void }[] = []
  const use = (name: string, waitMs?: number) =>
    fair.use(
      name[0]!,
      () => {
        begun.push(name)
        const { opened, open, fail } = gate<string>()
        gates.push({ open, fail })
        return opened
      },
      waitMs,
    )
  /** Ends the call that has run longest. */
  const endNext = async () => {
    gates.shift()!.open('done')
    await clock.advanceAsync(0)
  }
  const failNext = (error: unknown) => gates.shift()!.fail(error)
  return { clock, use, begun, refusals, endNext, failNext }
}

it('lets the tenants take turns when many wait', async () => {
  const { use, begun, endNext } = setup()
  const all = ['a1', 'a2', 'a3', 'b1', 'c1', 'b2'].map((name) => use(name))
  while (begun.length < all.length) await endNext()
  await endNext()
  expect(begun).toEqual(['a1', 'a2', 'b1', 'c1', 'a3', 'b2'])
  expect(await Promise.all(all)).toEqual(all.map(() => 'done'))
})

it('runs as many calls at once as there are slots, and reuses slots after failures', async () => {
  const { use, begun, endNext, failNext } = setup({ slots: 2 })
  const [first, ...others] = ['a1', 'a2', 'b1', 'a3'].map((name) => use(name))
  expect(begun).toEqual(['a1', 'a2'])
  failNext(new Error('broken'))
  await expect(first).rejects.toThrow('broken')
  expect(begun).toEqual(['a1', 'a2', 'b1'])
  while (begun.length < 4) await endNext()
  await endNext()
  await endNext()
  expect(await Promise.all(others)).toEqual(['done', 'done', 'done'])
})

it('refuses the newest call of the tenant with most waiting, never another', async () => {
  const { use, begun, refusals, endNext } = setup({ waitingMax: 3 })
  const [running, second, third, fourth] = ['a1', 'a2', 'a3', 'a4'].map((name) => use(name))
  const refused = { code: 'STORE_FAILED', failure: 'overloaded', operation: 'advance' }
  await expect(use('a5')).rejects.toMatchObject(refused)
  const other = use('b1')
  await expect(fourth).rejects.toMatchObject(refused)
  expect(refusals).toHaveLength(2)
  while (begun.length < 4) await endNext()
  await endNext()
  expect(begun).toEqual(['a1', 'a2', 'b1', 'a3'])
  expect(await Promise.all([running, second, third, other])).toEqual(Array(4).fill('done'))
})

it('never starts a call that has waited for too long', async () => {
  const { clock, use, begun, endNext } = setup()
  const running = use('a1')
  const late = use('b1', 1_000).catch((error: unknown) => error)
  const patient = use('c1')
  await clock.advanceAsync(1_000)
  expect(await late).toMatchObject({ failure: 'overloaded' })
  await endNext()
  expect(begun).toEqual(['a1', 'c1'])
  await endNext()
  expect(await Promise.all([running, patient])).toEqual(['done', 'done'])
  expect(clock.pendingTimers).toBe(0)
})
