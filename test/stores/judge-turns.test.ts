import { expect, it } from 'vitest'
import { TurnsJudge, type WaitingItem } from './judge-turns.ts'

/** Items from `lane tenant` texts, the longest due first. The id of an item is its index. */
function waitingOf(...turns: string[]): WaitingItem[] {
  return turns.map((turn, n) => {
    const [lane = '', tenant = ''] = turn.split(' ')
    return { id: String(n), lane, tenant, dueAtMs: n }
  })
}

const judge = (waiting: readonly WaitingItem[], taken: string, limit: number, max = limit) =>
  new TurnsJudge().judge(waiting, taken.split(''), { limit, maxOf: () => max })

const FLOOD = waitingOf('x a', 'x a', 'x a', 'x b', 'y a')

it.each([
  ['one item of each lane', '04', 2],
  ['items of two lanes and two tenants', '34', 2],
  ['one item of each tenant in each lane', '034', 3],
  ['a second item of a tenant when every tenant has one', '0134', 4],
  ['all items', '01234', 10],
])('accepts a choice of %s', (_, taken, limit) => {
  expect(judge(FLOOD, taken, limit)).toEqual([])
})

it.each([
  ['an item that is not due', '9', 1, '9 is not due'],
  ['the same item twice', '00', 2, 'an item is taken twice'],
  ['more items than the limit', '04', 1, 'takes more than 1'],
  ['no item although some are due', '', 1, 'takes none, although some are due'],
  ['a later item of a tenant before an earlier one', '1', 1, '1 is taken before an item that is'],
  ['two items of one tenant and none of another', '014', 3, 'b of x got nothing, although another'],
  ['fewer tenants than there is room for', '04', 3, 'b of x got nothing, although there was room'],
])('reports a choice of %s', (_, taken, limit, fault) => {
  const faults = judge(FLOOD, taken, limit)
  expect(faults.filter((one) => one.startsWith(fault))).toHaveLength(1)
})

it('reports two turns of one lane and none of another', () => {
  const waiting = waitingOf('x a', 'x b', 'x c', 'y a')
  expect(judge(waiting, '01', 2)).toEqual([
    'a of y got nothing, although another lane got more turns',
  ])
  expect(judge(waiting, '03', 2)).toEqual([])
})

it('reports more items of a lane than its limit', () => {
  const waiting = waitingOf('x a', 'x b')
  expect(judge(waiting, '01', 2, 1)).toEqual(['takes too many of x'])
  expect(judge(waiting, '0', 2, 1)).toEqual([])
  expect(judge(waiting, '', 2, 0)).toEqual([])
})

it.each([
  ['tenant', waitingOf('x a', 'x b'), 'a was served 3 times before b'],
  ['lane', waitingOf('x a', 'y a'), 'x was served 3 times before y'],
])('reports a %s that waits while another is served for the third time', (_, waiting, fault) => {
  const turns = new TurnsJudge()
  const limits = { limit: 1, maxOf: () => 1 }
  const take = (id: string) => turns.judge(waiting, [id], limits)
  expect([take('0'), take('0'), take('1'), take('0'), take('0')]).toEqual([[], [], [], [], []])
  expect(take('0')).toEqual([fault])
  turns.forget()
  expect(take('0')).toEqual([])
})
