import { expect, it } from 'vitest'
import { FairQueue } from '../../../src/core/store/fair-queue.ts'

/** Items are named for their tenant: `a1` is the first of a. */
function queueOf(...items: string[]): FairQueue<string> {
  const queue = new FairQueue<string>()
  for (const item of items) queue.push(item[0]!, item)
  return queue
}

function drain(queue: FairQueue<string>): string[] {
  const items: string[] = []
  for (let item = queue.shift(); item !== undefined; item = queue.shift()) items.push(item)
  return items
}

it('keeps the order of one tenant', () => {
  expect(drain(queueOf('a1', 'a2', 'a3'))).toEqual(['a1', 'a2', 'a3'])
})

it('lets the tenants take turns in any order of arrival', () => {
  const queue = queueOf('a1', 'a2', 'a3', 'b1', 'c1', 'b2')
  expect(drain(queue)).toEqual(['a1', 'b1', 'c1', 'a2', 'b2', 'a3'])
  expect(queue.size).toBe(0)
})

it('makes a new tenant wait for the current round only', () => {
  const queue = queueOf('a1', 'a2', 'a3', 'a4', 'b1')
  expect([queue.shift(), queue.peek()]).toEqual(['a1', 'b1'])
  queue.push('c', 'c1')
  expect(drain(queue)).toEqual(['b1', 'a2', 'c1', 'a3', 'a4'])
})

it('keeps the order over thousands of items with new ones in between', () => {
  const queue = new FairQueue<number>()
  const seen: number[] = []
  for (let n = 0; n < 5_000; n++) {
    queue.push('a', n)
    if (n % 3 === 0) seen.push(queue.shift()!)
  }
  for (let item = queue.shift(); item !== undefined; item = queue.shift()) seen.push(item)
  expect(seen).toEqual(Array.from({ length: 5_000 }, (_, n) => n))
})

it('displaces the newest item of the tenant with most items', () => {
  const queue = queueOf('a1', 'b1', 'b2', 'b3', 'c1', 'c2')
  expect(queue.crowdOut('a')).toBe('b3')
  expect(queue.size).toBe(5)
  expect(drain(queue)).toEqual(['a1', 'b1', 'c1', 'b2', 'c2'])
})

it('displaces no item for the tenant with most items, or as many', () => {
  const queue = queueOf('a1', 'a2', 'b1', 'b2')
  expect([queue.crowdOut('a'), queue.crowdOut('b')]).toEqual([undefined, undefined])
  // One more item for c would make it equal to the others.
  expect(queue.crowdOut('c')).toBe('a2')
  expect(queue.crowdOut('a')).toBeUndefined()
  expect(queue.size).toBe(3)
})

it('finds the next tenant with most items after the first has fewer', () => {
  const queue = queueOf('b1', 'b2', 'b3', 'a1', 'a2', 'a3', 'a4')
  const gone = Array.from({ length: 6 }, () => queue.crowdOut('c'))
  // Among tenants with as many, the one that has had them longest.
  expect(gone).toEqual(['a4', 'b3', 'a3', 'b2', 'a2', undefined])
  expect(drain(queue)).toEqual(['b1', 'a1'])
})

it('skips a held tenant, and gives it its turn back', () => {
  const queue = queueOf('a1', 'a2', 'b1', 'c1')
  const isHeld = (tenant: string) => tenant === 'a'
  expect(queue.peek(isHeld)).toBe('b1')
  expect([queue.shift(), queue.shift(), queue.peek(isHeld)]).toEqual(['b1', 'c1', undefined])
  queue.push('a', 'a3')
  expect([queue.peek(), queue.rows]).toEqual([undefined, 3])
  queue.readmit()
  expect(drain(queue)).toEqual(['a1', 'a2', 'a3'])
})

it('makes room for another queue, even with the only item of a tenant', () => {
  const queue = queueOf('a1', 'b1', 'b2')
  expect([queue.crowdOut(), queue.size]).toEqual(['b2', 2])
  const gone = new Set([queue.crowdOut(), queue.crowdOut()])
  expect([gone, queue.size, queue.crowdOut(), queue.peek()]).toEqual([
    new Set(['a1', 'b1']),
    0,
    undefined,
    undefined,
  ])
  queue.push('a', 'a2')
  expect(drain(queue)).toEqual(['a2'])
})

// 20,000 searches among 10,000 tenants take longer than a test may.
it('makes room without a search among all tenants', () => {
  const queue = new FairQueue<number>()
  const tenants = Array.from({ length: 10_000 }, (_, n) => `tenant ${n}`)
  for (const [n, tenant] of tenants.entries()) queue.push(tenant, n)
  expect(tenants.filter((tenant) => queue.crowdOut(tenant) !== undefined)).toEqual([])
  const gone = tenants.map(() => queue.crowdOut())
  expect([gone[0], gone.at(-1), queue.size]).toEqual([0, 9_999, 0])
})
