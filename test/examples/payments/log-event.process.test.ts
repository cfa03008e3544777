import { afterEach, expect, it, vi } from 'vitest'
import { logEvent } from '../../../examples/payments/log-event.ts'
import type { EngineEvent } from '../../../src/core/events.ts'

afterEach(() => void vi.restoreAllMocks())

const SUBJECT = { identity: 'hash', tenant: 'acme', operation: 'payments.create', recordId: 'r-1' }
const { tenant, operation } = SUBJECT
const error = new Error('no answer')

const LOGGED: readonly (readonly [event: EngineEvent, line: string])[] = [
  [
    { kind: 'reserve_reused', ...SUBJECT, attempt: 1 },
    'a key was used again after its record had expired: operation=payments.create record=r-1',
  ],
  [
    { kind: 'limiter_failed', tenant, operation, limit: 'new_keys', error },
    'a request passed without the limit new_keys: no answer',
  ],
  [
    { kind: 'encryption_failed', tenant, operation, error },
    'the encryption is not available, so no work began: no answer',
  ],
  [
    { kind: 'effect_without_key', ...SUBJECT, name: 'payments.create', phase: 'charge' },
    'an effect was sent without its key: operation=payments.create record=r-1 phase=charge',
  ],
]

it.each(LOGGED)('logs an event that an operator should see: $kind', (event, line) => {
  const printed = vi.spyOn(console, 'error').mockReturnValue(undefined)
  logEvent(event)
  expect(printed.mock.calls).toEqual([[`oncekey: ${line}`]])
})

it('does not log replays and refusals, which are normal', () => {
  const printed = vi.spyOn(console, 'error').mockReturnValue(undefined)
  logEvent({ kind: 'reserve_replay', ...SUBJECT })
  logEvent({ kind: 'request_refused', tenant, operation, reason: 'new_keys' })
  expect(printed).not.toHaveBeenCalled()
})
