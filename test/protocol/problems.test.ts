import { describe, expect, it } from 'vitest'
import { type Problem, PROBLEMS } from '../../src/protocol/problems.ts'

const problems: readonly [string, Problem][] = Object.entries(PROBLEMS)

describe('problems', () => {
  it('keeps the codes, types and statuses of problems that clients branch on', () => {
    const table = problems.map(([name, { code, status, stripeStatus, stripeType }]) => {
      return [name, code, status, stripeStatus, stripeType]
    })
    const invalid = 'invalid_request_error'
    const conflict = 'idempotency_error'
    const reused = 'key_reused_with_different_payload'
    expect(table).toEqual([
      ['key_missing', 'idempotency_key_missing', 400, 400, invalid],
      ['key_malformed', 'idempotency_key_malformed', 400, 400, invalid],
      [reused, `idempotency_${reused}`, 422, 400, conflict],
      ['key_in_progress', 'idempotency_key_in_progress', 409, 409, conflict],
      ['outcome_unknown', 'idempotency_outcome_unknown', 409, 409, conflict],
      ['store_unavailable', 'idempotency_store_unavailable', 503, 503, 'api_error'],
      ['server_stopping', 'idempotency_server_stopping', 503, 503, 'api_error'],
      ['outcome_not_recorded', 'idempotency_outcome_not_recorded', 503, 503, 'api_error'],
      ['key_expired', 'idempotency_key_expired', 410, 410, conflict],
      ['rate_limited', 'idempotency_rate_limited', 429, 429, invalid],
      ['request_too_old', 'idempotency_request_too_old', 412, 412, conflict],
      ['request_time_missing', 'idempotency_request_time_missing', 400, 400, invalid],
      ['request_too_large', 'idempotency_request_too_large', 413, 413, invalid],
      ['request_unreadable', 'idempotency_request_unreadable', 400, 400, invalid],
      ['reply_unreadable', 'idempotency_reply_unreadable', 409, 409, conflict],
      ['accepted', 'idempotency_accepted', 202, 202, undefined],
      ['record_not_found', 'idempotency_record_not_found', 404, 404, invalid],
      ['retry_required', 'idempotency_retry_required', 409, 409, conflict],
      ['status_unavailable', 'idempotency_status_unavailable', 503, 503, 'api_error'],
    ])
  })

  it.each(problems)('derives the type of %s from its code', (_name, { code, type }) => {
    expect(type).toBe(`urn:oncekey:problem:${code.replaceAll('_', '-')}`)
  })

  it.each(problems)('describes %s in whole sentences', (_name, { title, detail }) => {
    expect(title).toMatch(/^[A-Z].*[^.]$/)
    expect(detail).toMatch(/^[A-Z].*\.$/)
    expect(detail.length).toBeGreaterThan(title.length)
  })

  it.each(problems.filter(([, { status }]) => [202, 503].includes(status)))(
    'refers to Retry-After in the detail of %s',
    (_name, { detail }) => {
      expect(detail).toContain('Retry-After')
    },
  )
})
