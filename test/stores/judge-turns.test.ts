import { expect, it } from 'vitest'
import { TurnsJudge, type Waiting } from './judge-turns.ts'

/** `lane tenant` for each, due for the longer the earlier it comes. The ids are their places. */
function waitingOf(...turns: string[]): Waiting[] {
  return turns.map((turn, n) => {
    const [lane = '', tenant = ''] = turn.split(' ')
    return { id: String(n), lane, tenant, dueAtMs: n }
  })
}

const judge = (waiting: readonly Waiting[], taken: string, limit: number, max = limit) =>
  new TurnsJudge().judge(waiting, taken.split(''), { limit, maxOf: () => max })

const FLOOD = waitingOf('x a', 'x a', 'x a', 'x b', 'y a')

it.each([
  ['one of each lane', '04', 2],
  ['one of another lane and tenant', '34', 2],
  ['one of each lane and tenant', '034', 3],
  ['the second of a tenant where all have one', '0134', 4],
  ['all', '01234', 10],
])('finds nothing wrong with %s', (_, taken, limit) => {
  expect(judge(FLOOD, taken, limit)).toEqual([])
})

it.each([
  ['one that is not due', '9', 1, '9 not due'],
  ['one twice', '00', 2, 'one is taken twice'],
  ['more than were asked for', '04', 1, 'more than 1'],
  ['none', '', 1, 'none, although some are due'],
  ['one before one of the same tenant that is due for longer', '1', 1, '1 before one that is due'],
  ['two of a tenant beside one that has none', '014', 3, 'b of x went without, although another'],
  ['fewer than there are tenants', '04', 3, 'b of x went without, although there was room'],
])('finds %s wrong', (_, taken, limit, fault) => {
  const faults = judge(FLOOD, taken, limit)
  expect(faults.filter((one) => one.startsWith(fault))).toHaveLength(1)
})

it('finds two turns of a lane wrong beside one that had none', () => {
  const waiting = waitingOf('x a', 'x b', 'x c', 'y a')
  expect(judge(waiting, '01', 2)).toEqual([
    'a of y went without, although another lane has more turns',
  ])
  expect(judge(waiting, '03', 2)).toEqual([])
})

it('finds more of a lane wrong than it may have', () => {
  const waiting = waitingOf('x a', 'x b')
  expect(judge(waiting, '01', 2, 1)).toEqual(['too many of x'])
  expect(judge(waiting, '0', 2, 1)).toEqual([])
  expect(judge(waiting, '', 2, 0)).toEqual([])
})

it.each([
  ['tenant', waitingOf('x a', 'x b'), 'a came 3 times before b'],
  ['lane', waitingOf('x a', 'y a'), 'x came 3 times before y'],
])('finds it wrong that a %s waits while another comes a third time', (_, waiting, fault) => {
  const turns = new TurnsJudge()
  const places = { limit: 1, maxOf: () => 1 }
  const take = (id: string) => turns.judge(waiting, [id], places)
  expect([take('0'), take('0'), take('1'), take('0'), take('0')]).toEqual([[], [], [], [], []])
  expect(take('0')).toEqual([fault])
  turns.forget()
  expect(take('0')).toEqual([])
})
