import { expect, it } from 'vitest'
import {
  cursorAfter,
  TurnMemory,
  TurnWalk,
  type Entry,
  type Leap,
} from '../../../../src/stores/mysql/turns/walk.ts'
import { seededRandom } from '../../../process/random.ts'

/** A sorted index with so many entries of each tenant. */
function indexOf(counts: ReadonlyMap<string, number>): Entry[] {
  return [...counts]
    .toSorted(([one], [other]) => (one < other ? -1 : 1))
    .flatMap(([key, count]) => Array.from({ length: count }, () => ({ key })))
}

function read(index: readonly Entry[], { after, rows }: Leap): Entry[] {
  const first = after === undefined ? 0 : index.findIndex(({ key }) => key > after)
  return first === -1 ? [] : index.slice(first, first + rows)
}

/** One call: walks until it has found `wanted` tenants, serves them, and saves the memory. */
function walkOnce(
  memory: TurnMemory,
  index: readonly Entry[],
  { wanted, rounds = 4 }: { readonly wanted: number; readonly rounds?: number },
) {
  const before = memory.of('lane')
  const walk = new TurnWalk<Entry>(before)
  let leaps = 0
  let round = 0
  while (round < rounds && walk.stops.length < wanted && !walk.isOver) {
    round++
    const next = walk.leaps({ count: 64, wanted: wanted * 4 ** (round - 1) })
    leaps += next.length
    walk.note(
      next,
      next.map((leap) => read(index, leap)),
    )
  }
  const met = walk.stops.map(({ key }) => key)
  const served = met.slice(0, wanted)
  const stops = met.map((key) => ({ key, isLeft: !served.includes(key) }))
  memory.set('lane', walk.rememberAt(cursorAfter(before.cursor, stops)))
  return { start: before.cursor, met, served, leaps, rounds: round, isOver: walk.isOver }
}

/** All tenants in the order of a walk from `start`. */
function around(index: readonly Entry[], start: string | undefined): string[] {
  const keys = [...new Set(index.map(({ key }) => key))]
  const isAhead = (key: string) => start === undefined || key > start
  return [...keys.filter(isAhead), ...keys.filter((key) => !isAhead(key))]
}

/** Adds and removes random entries. */
function change(counts: Map<string, number>, names: number, pick: (below: number) => number) {
  for (let left = pick(30); left > 0; left--) {
    const key = pick(names).toString(16).toUpperCase().padStart(2, '0')
    if (pick(3) === 0) counts.delete(key)
    else counts.set(key, 1 + pick(pick(2) === 0 ? 3 : 100))
  }
}

it('finds the tenants in the order of the index after every random history', () => {
  for (let seed = 1; seed <= 300; seed++) {
    const next = seededRandom(seed)
    const pick = (below: number) => Math.floor(next() * below)
    const memory = new TurnMemory()
    const counts = new Map<string, number>()
    const names = 1 + pick(60)
    for (let call = 0; call < 12; call++) {
      change(counts, names, pick)
      const index = indexOf(counts)
      const { start, met, isOver } = walkOnce(memory, index, { wanted: 1 + pick(20) })
      const expected = around(index, start)
      expect(met, `seed ${seed}`).toEqual(expected.slice(0, met.length))
      if (isOver) expect(met.length, `seed ${seed}`).toBe(expected.length)
    }
  }
})

const tenants = (count: number, entries: number) =>
  indexOf(
    new Map(
      Array.from({ length: count }, (_, n) => [n.toString(16).padStart(4, '0'), entries] as const),
    ),
  )

it.each([
  { what: 'one tenant with many entries', index: tenants(1, 60), leaps: 2 },
  { what: 'few tenants with many entries', index: tenants(5, 60), leaps: 6 },
  { what: 'many tenants with many entries', index: tenants(300, 60), leaps: 11 },
  { what: 'many tenants with one entry each', index: tenants(1000, 1), leaps: 4 },
])('needs one round trip and few leaps for $what', ({ index, leaps }) => {
  const memory = new TurnMemory()
  const met = new Set<string>()
  // The first calls find the tenants.
  for (let call = 0; call < 150; call++) {
    for (const key of walkOnce(memory, index, { wanted: 10 }).served) met.add(key)
  }
  expect([...met].toSorted()).toEqual(around(index, undefined))
  for (let call = 0; call < 50; call++) {
    const walk = walkOnce(memory, index, { wanted: 10 })
    expect(walk.rounds).toBe(1)
    expect(walk.leaps).toBeLessThanOrEqual(leaps)
    expect(walk.served.length).toBe(Math.min(10, around(index, undefined).length))
  }
})

it('continues with a tenant that was found but not served', () => {
  const memory = new TurnMemory()
  const index = tenants(7, 3)
  const served = Array.from({ length: 7 }, () => walkOnce(memory, index, { wanted: 3 }).served)
  const counts = new Map<string, number>()
  for (const key of served.flat()) counts.set(key, (counts.get(key) ?? 0) + 1)
  expect([...counts.values()]).toEqual([3, 3, 3, 3, 3, 3, 3])
})

it('keeps the cursors of 20,000 lanes, and drops the oldest beyond its limit', () => {
  const memory = new TurnMemory()
  const cursor = 'A0'.repeat(60)
  const set = (n: number) => memory.set(`${n}`, { ...memory.of(''), cursor })
  for (let n = 0; n < 20_000; n++) set(n)
  // An unchanged cursor is not set again.
  set(0)
  expect(memory.of('0').cursor).toBe(cursor)
  for (let n = 20_000; n < 25_000; n++) set(n)
  expect(memory.of('24999').cursor).toBe(cursor)
  expect(memory.of('0').cursor).toBeUndefined()
})

it('drops the known tenants of a lane before its cursor', () => {
  const memory = new TurnMemory()
  const known = Array.from({ length: 512 }, (_, n) => n.toString(16).padStart(100, '0'))
  for (let n = 0; n < 200; n++) {
    memory.set(`${n}`, { cursor: `${n}`, known, isEndKnown: true, each: 1 })
  }
  expect(memory.of('199').known.length).toBe(512)
  expect(memory.of('0')).toMatchObject({ cursor: '0', known: [] })
  const index = tenants(1000, 20)
  for (let call = 0; call < 30; call++) walkOnce(memory, index, { wanted: 60, rounds: 20 })
  expect(memory.of('lane').known.length).toBe(512)
})

/** A tenant as a key of the index. */
const keyOf = (tenant: string) => Buffer.from(tenant).toString('hex').toUpperCase()

it('continues right before a tenant with due work, and wraps around once', () => {
  for (const due of ['b', 'b\0', 'bé', '\0']) {
    const walk = new TurnWalk<Entry>({ ...new TurnMemory().of(''), cursor: keyOf('m') })
    walk.pass({ last: keyOf('z'), due: undefined, isEnd: false })
    expect(walk.rest).toEqual({ after: keyOf('z'), upTo: undefined })
    walk.pass({ last: undefined, due: undefined, isEnd: true })
    expect(walk.rest).toEqual({ after: undefined, upTo: keyOf('m') })
    walk.pass({ last: keyOf('c'), due: keyOf(due), isEnd: true })
    const { after = '' } = walk.rest ?? {}
    expect(after < keyOf(due)).toBe(true)
    const smaller = ['', 'a', 'az', `a\u{10ffff}`, `b\0`, 'bè'].map(keyOf)
    expect(smaller.filter((key) => key > after && key < keyOf(due))).toEqual([])
    const [leap] = walk.leaps({ count: 1, wanted: 1 })
    walk.note([leap!], [[{ key: keyOf(due) }]])
    expect(walk.isOver).toBe(true)
    expect(walk.stops.at(-1)?.key).toBe(keyOf(due))
  }
})
