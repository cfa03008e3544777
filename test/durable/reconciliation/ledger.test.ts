import { Readable } from 'node:stream'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  compareLedgers,
  differencesOf,
  type LedgerEntry,
} from '../../../src/durable/reconciliation/ledger.ts'

const entries = (...ids: string[]): LedgerEntry[] => ids.map((id) => ({ id }))

async function* later<Entry>(list: Iterable<Entry>) {
  for (const entry of list) {
    await Promise.resolve()
    yield entry
  }
}

it('reports entries that only one side has', async () => {
  const report = await compareLedgers({
    ours: entries('a', 'b', 'd', 'e'),
    theirs: later(entries('b', 'c', 'd', 'f')),
  })
  expect(report).toEqual({
    matched: 2,
    missing_theirs: { count: 2, samples: entries('a', 'e') },
    missing_ours: { count: 2, samples: entries('c', 'f') },
    different: { count: 0, samples: [] },
    duplicate_ours: { count: 0, samples: [] },
    duplicate_theirs: { count: 0, samples: [] },
  })
  expect(differencesOf(report)).toBe(4)
})

it('reports entries of one id that differ', async () => {
  const at = (ms: number) => new Date(ms)
  const ours = [
    { id: 'a', amount: 1, at: at(5) },
    { id: 'b', amount: 2, at: at(5) },
    { id: 'c', amount: 3, at: at(5) },
    { id: 'd', amount: 4, at: at(5) },
  ]
  const theirs = [
    { id: 'a', amount: 1, at: at(5) },
    { id: 'b', amount: 9, at: at(5) },
    { id: 'c', amount: 3, at: at(6) },
    { id: 'd', amount: 4, at: at(5), fee: 1 },
  ]
  const report = await compareLedgers({ ours, theirs })
  expect(report.matched).toBe(1)
  expect(report.different.samples.map((pair) => pair.ours.id)).toEqual(['b', 'c', 'd'])

  const byAmount = await compareLedgers({
    ours,
    theirs,
    compare: (our, their) => our.amount === their.amount,
  })
  expect(byAmount).toMatchObject({ matched: 3, different: { count: 1 } })
})

// One id in our ledger and two charges at the provider is a double charge.
it('reports ids that one side has twice', async () => {
  const theirs = [
    { id: 'a', n: 1 },
    { id: 'a', n: 2 },
    { id: 'a', n: 3 },
    { id: 'b', n: 4 },
  ]
  const report = await compareLedgers({
    ours: entries('a', 'b', 'b'),
    theirs,
    compare: () => true,
  })
  expect(report).toMatchObject({
    matched: 2,
    duplicate_theirs: { count: 2, samples: [{ n: 2 }, { n: 3 }] },
    duplicate_ours: { count: 1 },
  })
})

it('counts all differences and keeps the first samples', async () => {
  const ids = Array.from({ length: 500 }, (_, n) => String(n).padStart(4, '0'))
  const report = await compareLedgers({ ours: entries(...ids), theirs: [], samplesMax: 3 })
  expect(report.missing_theirs).toEqual({ count: 500, samples: entries('0000', '0001', '0002') })
})

describe('a ledger that is out of order', () => {
  it.each(['ours', 'theirs'] as const)(
    'names the unsorted ledger and its entry in the error: %s',
    async (side) => {
      const sorted = entries('a', 'b', 'c', 'd')
      const sides = { ours: sorted, theirs: sorted, [side]: entries('a', 'c', 'b') }
      await expect(compareLedgers(sides)).rejects.toThrow(
        `compareLedgers.${side} is not sorted by id: "b" comes after "c"`,
      )
    },
  )

  it('rejects a ledger that is sorted by a language collation', async () => {
    // By bytes, upper case comes first.
    await expect(compareLedgers({ ours: entries('a', 'B'), theirs: [] })).rejects.toThrow(/COLLATE/)
  })

  it('closes both readers, so that their connections are released', async () => {
    const ended: string[] = []
    async function* reader(name: string, ids: string[]) {
      try {
        yield* entries(...ids)
      } finally {
        ended.push(name)
      }
    }
    const ours = reader('ours', ['b', 'a'])
    const theirs = reader('theirs', ['a', 'b', 'c', 'd'])
    await expect(compareLedgers({ ours, theirs })).rejects.toThrow(/not sorted/)
    expect(ended.toSorted()).toEqual(['ours', 'theirs'])
  })
})

it.each([undefined, 7, ''])('rejects an entry with the id %j', async (id) => {
  const ours = [{ id }] as never
  await expect(compareLedgers({ ours, theirs: [] })).rejects.toThrow(/every entry needs an id/)
})

it('rejects with the error of a reader, and with the reason of its signal', async () => {
  async function* broken(): AsyncGenerator<LedgerEntry> {
    yield { id: 'a' }
    throw new Error('page 2 is missing')
  }
  await expect(compareLedgers({ ours: broken(), theirs: [] })).rejects.toThrow('page 2')
  const stop = AbortSignal.abort(new Error('not mine any more'))
  const call = compareLedgers({ ours: entries('a'), theirs: [], signal: stop })
  await expect(call).rejects.toThrow('not mine any more')
})

it('rejects when its signal aborts, even while a reader hangs', async () => {
  const asked = Promise.withResolvers<void>()
  const ended = Promise.withResolvers<void>()
  const answer = Promise.withResolvers<void>()
  async function* hanging(): AsyncGenerator<LedgerEntry> {
    try {
      yield { id: 'a' }
      asked.resolve()
      await answer.promise
    } finally {
      ended.resolve()
    }
  }
  const stop = new AbortController()
  const call = compareLedgers({ ours: hanging(), theirs: entries('b'), signal: stop.signal })
  await asked.promise
  stop.abort(new Error('it takes too long'))
  await expect(call).rejects.toThrow('it takes too long')
  // The reader is closed, too, and ends when its pending read does.
  answer.resolve()
  await ended.promise
})

it('closes the other stream if a reader fails at once', async () => {
  // oxlint-disable-next-line eslint/require-yield -- The generator throws before its first entry.
  async function* broken(): AsyncGenerator<LedgerEntry> {
    throw new Error('the database is down')
  }
  const theirs = Readable.from(entries('a', 'b'))
  await expect(compareLedgers({ ours: broken(), theirs })).rejects.toThrow('the database is down')
  expect(theirs.destroyed).toBe(true)
})

// Both sides are generated as they are read: neither is read ahead of the other.
it('holds neither ledger in memory', async () => {
  const COUNT = 200_000
  const read = { ours: 0, theirs: 0 }
  let apart = 0
  function* huge(side: 'ours' | 'theirs', missing: number) {
    for (let n = 0; n < COUNT; n++) {
      read[side] = n
      apart = Math.max(apart, Math.abs(read.ours - read.theirs))
      if (n !== missing) yield { id: String(n).padStart(9, '0') }
    }
  }
  const report = await compareLedgers({
    ours: huge('ours', 7),
    theirs: huge('theirs', COUNT - 9),
    samplesMax: 1,
  })
  expect(report).toMatchObject({
    matched: COUNT - 2,
    missing_ours: { count: 1 },
    missing_theirs: { count: 1 },
  })
  expect(apart).toBeLessThanOrEqual(2)
})

it('yields to the event loop while it reads ledgers in memory', async () => {
  let turns = 0
  const count = () => {
    turns++
    timer = setImmediate(count)
  }
  let timer = setImmediate(count)
  const ids = Array.from({ length: 20_000 }, (_, n) => String(n).padStart(6, '0'))
  await compareLedgers({ ours: entries(...ids), theirs: entries(...ids) })
  clearImmediate(timer)
  expect(turns).toBeGreaterThan(10)
})

it('reports the same differences as set operations for any two ledgers', async () => {
  const ledger = fc
    .array(fc.string({ minLength: 1, maxLength: 2 }))
    .map((ids) => ids.toSorted((a, b) => (a < b ? -1 : Number(a > b))))
  await fc.assert(
    fc.asyncProperty(ledger, ledger, async (ours, theirs) => {
      const report = await compareLedgers({
        ours: later(entries(...ours)),
        theirs: entries(...theirs),
      })
      const [our, their] = [new Set(ours), new Set(theirs)]
      const without = (one: Set<string>, other: Set<string>) =>
        [...one].filter((id) => !other.has(id))
      expect(report.matched).toBe(our.size - without(our, their).length)
      expect(report.missing_theirs.samples.map(({ id }) => id)).toEqual(without(our, their))
      expect(report.missing_ours.samples.map(({ id }) => id)).toEqual(without(their, our))
      expect(report.duplicate_ours.count).toBe(ours.length - our.size)
      expect(report.duplicate_theirs.count).toBe(theirs.length - their.size)
    }),
  )
})

it.each([
  [{ ours: {}, theirs: [] }, /ours must be an iterable/],
  [{ ours: [], theirs: undefined }, /theirs must be an iterable/],
  [{ ours: [], theirs: [], compare: true }, /compare must be a function/],
  [{ ours: [], theirs: [], sample: 1 }, /has no option "sample"/],
])('compareLedgers rejects %j', async (options, message) => {
  await expect(compareLedgers(options as never)).rejects.toThrow(message)
})
