import { describe, expect, it } from 'vitest'
import {
  afterDestroy,
  afterEnd,
  afterReplace,
  afterReset,
  isCaptured,
  isCutOff,
  isEnded,
  isOrphaned,
  type ReplyState,
} from '../../../src/adapters/node-http/reply-state.ts'

/** For each state, the state after each call. */
interface Transitions {
  readonly from: ReplyState
  readonly end: ReplyState
  readonly destroy: ReplyState
  readonly reset: ReplyState
}

const TRANSITIONS: readonly Transitions[] = [
  { from: 'open', end: 'ended', destroy: 'cut_off', reset: 'open' },
  { from: 'ended', end: 'ended', destroy: 'ended', reset: 'open' },
  { from: 'cut_off', end: 'cut_off', destroy: 'cut_off', reset: 'cut_off' },
  { from: 'flowing', end: 'flowing', destroy: 'flowing', reset: 'flowing' },
  {
    from: 'orphan_open',
    end: 'orphan_ended',
    destroy: 'orphan_cut_off',
    reset: 'orphan_open',
  },
  {
    from: 'orphan_ended',
    end: 'orphan_ended',
    destroy: 'orphan_ended',
    reset: 'orphan_open',
  },
  {
    from: 'orphan_cut_off',
    end: 'orphan_cut_off',
    destroy: 'orphan_cut_off',
    reset: 'orphan_cut_off',
  },
]

describe('the states of a captured reply', () => {
  it.each(TRANSITIONS)('end() leads from $from to $end', ({ from, end }) => {
    expect(afterEnd(from)).toBe(end)
  })

  it.each(TRANSITIONS)('destroy() leads from $from to $destroy', ({ from, destroy }) => {
    expect(afterDestroy(from)).toBe(destroy)
  })

  it.each(TRANSITIONS)('reset() leads from $from to $reset', ({ from, reset }) => {
    expect(afterReset(from)).toBe(reset)
  })

  it.each(['open', 'ended', 'cut_off'] as const)(
    'replace() leads from %s to its orphan state',
    (from) => {
      expect(afterReplace(from)).toBe(`orphan_${from}`)
    },
  )

  it.each(TRANSITIONS)(
    '$from is captured, flowing or orphaned, and never two of them',
    ({ from }) => {
      const groups = [isCaptured(from), from === 'flowing', isOrphaned(from)]
      expect(groups.filter(Boolean)).toHaveLength(1)
      expect(isEnded(from) && isCutOff(from)).toBe(false)
    },
  )
})
