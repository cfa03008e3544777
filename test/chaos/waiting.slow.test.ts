import { describe, expect, it } from 'vitest'
import type { Wait, WaitKind } from '../../chaos/check/facts.ts'
import { judge } from '../../chaos/check/judge.ts'
import { compareWaiting, neighboursIn, waitingOf, type Waiting } from '../../chaos/check/waiting.ts'
import { sinceAccepted } from '../../chaos/check/waits.ts'
import type { Outcome, Seen } from '../../chaos/clients/seen.ts'
import {
  ENDLESS_TOPIC,
  FLOOD,
  HANGING,
  HANGING_OPERATION,
  TELLING_OPERATION,
} from '../../chaos/neighbours/names.ts'
import { cleanRun, saw } from './clean-run.ts'

function wait(tenant: string, fromMs: number, untilMs: number, kind: WaitKind = 'accepted work') {
  return { kind, tenant, fromMs, untilMs } satisfies Wait
}

/** A hundred waits of 1 to 100 ms, times `times`. */
function waits(times: number): Wait[] {
  return Array.from({ length: 100 }, (_, index) => wait('tenant-a', 50, 50 + (index + 1) * times))
}

const compare = (without: number, withThem: number) =>
  compareWaiting(waitingOf(waits(without)), waitingOf(waits(withThem))).find(
    ({ kind }) => kind === 'accepted work',
  )!

describe('the waiting times', () => {
  it('waiting times are percentiles of each kind, without the bad neighbours', () => {
    const all = [
      ...waits(1),
      wait('tenant-b', 0, 7, 'messages'),
      wait(FLOOD.name, 0, 90_000),
      wait(HANGING.name, 0, 90_000, 'unknown outcomes'),
    ]
    expect(waitingOf(all)).toEqual([
      { kind: 'accepted work', count: 100, p50: 50, p99: 99, max: 100 },
      { kind: 'messages', count: 1, p50: 7, p99: 7, max: 7 },
      { kind: 'unknown outcomes', count: 0, p50: 0, p99: 0, max: 0 },
    ])
  })

  it('waiting times are never negative, although a clock may be set back', () => {
    expect(waitingOf([wait('tenant-a', 400, 100)])[0]).toMatchObject({ count: 1, max: 0 })
  })
})

describe('accepted work', () => {
  const STARTED_MS = 1_000_000
  const accepted = { kind: 'answer', status: 202, body: '{}', replayed: false } as const
  const told: Outcome = { ...accepted, location: undefined, retryAfterMs: undefined }
  const lost: Outcome = { kind: 'no_answer', why: 'cut' }

  function since(seen: Seen[], untilMs: number): number {
    const facts = cleanRun()
    facts.stories[4]!.seen = seen
    const row = { ...wait('tenant-a', STARTED_MS, STARTED_MS + untilMs), key: 'key-5' }
    return sinceAccepted([row], facts.stories, STARTED_MS)[0]!.fromMs - STARTED_MS
  }

  it('accepted work waits from the first 202 to its client', () => {
    expect(since([saw('request', 0, lost), saw('request', 50, told)], 900)).toBe(60)
    expect(since([saw('request', 50, told), saw('status', 200, told)], 900)).toBe(60)
  })

  it('accepted work without an earlier answer waits from the last request before its start', () => {
    expect(since([saw('request', 0, lost), saw('request', 500, told)], 505)).toBe(500)
    expect(since([saw('request', 100, lost), saw('request', 2_000, told)], 905)).toBe(100)
  })
})

describe('the comparison', () => {
  it('the comparison allows twice the p99 of the run without neighbours', () => {
    expect(compare(30, 60)).toMatchObject({ ok: true, with: { p99: 5_940 } })
    expect(compare(30, 61)).toMatchObject({ ok: false, with: { p99: 6_039 } })
  })

  it('the comparison reports a kind without any served work beside the neighbours', () => {
    const [some, none] = [waitingOf(waits(1)), waitingOf([])]
    const verdict = (one: Waiting[], other: Waiting[]) =>
      compareWaiting(one, other).map(({ kind, ok }) => [kind, ok])
    const others = [
      ['messages', true],
      ['unknown outcomes', true],
    ]
    expect(verdict(some, none)).toEqual([['accepted work', false], ...others])
    expect(verdict(none, some)).toEqual([['accepted work', true], ...others])
    expect(verdict(none, none)).toEqual([['accepted work', true], ...others])
  })

  it('the comparison ignores differences up to the poll interval of workers', () => {
    expect(compare(1, 11)).toMatchObject({ ok: true, with: { p99: 1_089 } })
    expect(compare(1, 12)).toMatchObject({ ok: false, with: { p99: 1_188 } })
  })
})

it('counts the work of the others during the flood, and not before or after it', () => {
  const facts = cleanRun()
  facts.waits = [
    wait(FLOOD.name, 100, 300),
    wait(FLOOD.name, 200, 500),
    wait('tenant-a', 0, 50),
    wait('tenant-a', 0, 100),
    wait('tenant-b', 400, 500),
    wait('tenant-b', 400, 501),
    wait('tenant-b', 300, 310, 'messages'),
  ]
  expect(neighboursIn(facts)).toMatchObject({
    'others started during the flood': 2,
    'others relayed during the flood': 1,
    'others reconciled during the flood': 0,
  })
})

describe('the judge of a run with bad neighbours', () => {
  it('the judge accepts that hanging work stays open', () => {
    const facts = cleanRun()
    const [record] = facts.records
    const [message] = facts.messages
    const { name: tenant } = HANGING
    for (const state of ['pending', 'unknown']) {
      const operation = HANGING_OPERATION
      facts.records.push({ ...record!, recordId: state, tenant, operation, key: state, state })
    }
    facts.messages.push({ ...message!, id: 'endless', topic: ENDLESS_TOPIC, state: 'held' })
    expect(judge(facts)).toEqual([])
  })

  it('the judge finds other open work of the hanging tenant', () => {
    const facts = cleanRun()
    const { name: tenant } = HANGING
    const telling = { recordId: 'record-7', tenant, operation: TELLING_OPERATION, key: 'tell' }
    facts.records.push({ ...facts.records[0]!, ...telling, state: 'pending' })
    const stuck = expect.objectContaining({ kind: 'stuck', recordId: 'record-7' })
    expect(judge(facts)).toEqual([stuck])
  })

  it('the judge finds accepted work of the flood that is open, or has no record', () => {
    const facts = cleanRun()
    const { name: tenant } = FLOOD
    facts.accepted.push({ tenant, key: 'flood-1' }, { tenant, key: 'flood-2' })
    const pending = { recordId: 'record-7', tenant, key: 'flood-1', state: 'pending' }
    facts.records.push({ ...facts.records[0]!, ...pending })
    expect(judge(facts)).toEqual([
      { kind: 'lost', detail: 'flood-2 was accepted and has no record' },
      expect.objectContaining({ kind: 'stuck', recordId: 'record-7' }),
    ])
  })

  it('the judge finds accepted work of the flood that is completed and was not paid', () => {
    const facts = cleanRun()
    facts.books.transfers[0]!.status = 'pending'
    const detail = 'key-5 was accepted and completed, but not paid'
    expect(judge(facts)).toContainEqual({ kind: 'lost', recordId: 'record-5', detail })
  })
})
