import type { EngineEvent, EventSubject } from '../events.ts'
import type { ClaimOutcome, ClaimRequest } from '../store/store.ts'

/**
 * Returns the events for the answer to a claim. The `reserve_…` events count the requests of
 * clients, so a worker that continues an operation emits none.
 */
export function claimEvents(
  subject: EventSubject,
  outcome: ClaimOutcome,
  mode: ClaimRequest['mode'],
): EngineEvent[] {
  const events = requestEvents(subject, outcome)
  return mode === 'take' ? events.filter(({ kind }) => !kind.startsWith('reserve_')) : events
}

function requestEvents(subject: EventSubject, outcome: ClaimOutcome): EngineEvent[] {
  switch (outcome.kind) {
    case 'claimed': {
      const { attempt } = outcome.lease
      if (outcome.from === 'retry') return [{ kind: 'reserve_failed_retry', ...subject, attempt }]
      if (outcome.from === 'lapsed') {
        return [{ kind: 'zombie_key', ...subject, attempt: attempt - 1, to: 'in_progress' }]
      }
      const kind = outcome.from === 'expired' ? 'reserve_reused' : 'reserve_created'
      return [{ kind, ...subject, attempt }]
    }
    case 'completed':
      return [{ kind: 'reserve_replay', ...subject }]
    case 'in_progress':
    case 'pending':
      return [{ kind: 'reserve_in_progress', ...subject }]
    case 'mismatch':
      return [{ kind: 'reserve_key_misuse', ...subject }]
    case 'expired':
      return [{ kind: 'reserve_expired', ...subject }]
    case 'free':
      return []
    case 'unknown':
      return unknownEvents(subject, outcome)
  }
}

function unknownEvents(
  subject: EventSubject,
  { attempt, lapsed }: Extract<ClaimOutcome, { kind: 'unknown' }>,
): EngineEvent[] {
  const found = { kind: 'reserve_unknown', ...subject } as const
  if (!lapsed) return [found]
  return [
    { kind: 'zombie_key', ...subject, attempt, to: 'unknown' },
    { kind: 'reconcile_scheduled', ...subject, errorCode: 'lease_lapsed' },
    found,
  ]
}
