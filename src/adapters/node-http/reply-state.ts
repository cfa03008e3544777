/**
 * The states of a captured reply (`captured-response.ts`), and the calls that change them:
 *
 *                  open ────────── end() ──────────► ended            captured: nothing was sent
 *                   │ └────────── destroy() ───────► cut_off
 *                   │                                 │
 *                   ├─── deliver(), withdraw() ───────┴─► flowing     calls reach the response
 *                   │                                 │
 *               replace()                         replace()
 *                   ▼                                 ▼
 *              orphan_open ─────── end() ──────────► orphan_ended     orphaned: the client got a
 *                     └────────── destroy() ───────► orphan_cut_off   reply of the guard
 *
 *     reset(): ended ► open, orphan_ended ► orphan_open. A cut-off stays.
 *
 * The handler calls `end` and `destroy`, the guard calls the rest. An orphaned handler may still
 * run, and its reply may still be recorded, but it is never sent.
 */
export type ReplyState = CapturedState | 'flowing' | OrphanState

type CapturedState = 'open' | 'ended' | 'cut_off'
type OrphanState = `orphan_${CapturedState}`

export function isCaptured(state: ReplyState): state is CapturedState {
  return state === 'open' || state === 'ended' || state === 'cut_off'
}

export function isOrphaned(state: ReplyState): state is OrphanState {
  return state === 'orphan_open' || state === 'orphan_ended' || state === 'orphan_cut_off'
}

export function isEnded(state: ReplyState): boolean {
  return state === 'ended' || state === 'orphan_ended'
}

export function isCutOff(state: ReplyState): boolean {
  return state === 'cut_off' || state === 'orphan_cut_off'
}

export function afterEnd(state: ReplyState): ReplyState {
  if (state === 'open') return 'ended'
  return state === 'orphan_open' ? 'orphan_ended' : state
}

export function afterDestroy(state: ReplyState): ReplyState {
  if (state === 'open') return 'cut_off'
  return state === 'orphan_open' ? 'orphan_cut_off' : state
}

export function afterReset(state: ReplyState): ReplyState {
  if (state === 'ended') return 'open'
  return state === 'orphan_ended' ? 'orphan_open' : state
}

export function afterReplace(state: ReplyState): OrphanState {
  if (isEnded(state)) return 'orphan_ended'
  return isCutOff(state) ? 'orphan_cut_off' : 'orphan_open'
}
