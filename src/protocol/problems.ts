/** The `type` of Stripe's error body. */
export type StripeErrorType = 'api_error' | 'idempotency_error' | 'invalid_request_error'

/** One answer of the guard or the status handler, in both profiles. */
export interface Problem {
  /** Stable: clients branch on it. Always `idempotency_` + the name of the problem. */
  readonly code: string
  /** Stable: the RFC 9457 `type`, which is the code written as a URN. */
  readonly type: string
  /** The status of the `ietf` profile. */
  readonly status: number
  /** The status of the `stripe` profile. */
  readonly stripeStatus: number
  /** `undefined` if the answer is not an error. */
  readonly stripeType: StripeErrorType | undefined
  /** The same for every occurrence; may be reworded between versions. */
  readonly title: string
  /** The default detail. Answers may have a more precise one. */
  readonly detail: string
}

/** The detail of `outcome_unknown` if a reconciler asks the provider for the outcome. */
export const OUTCOME_BEING_RECONCILED =
  'The first request with this key was interrupted and may have taken effect. Its outcome is ' +
  'being determined, and it will not run again until then. Retry with the same key after the ' +
  'time given in Retry-After; a new key could do the work twice.'

/** All problems that this package sends. Each has a section in `docs/reference/problems.md`. */
export const PROBLEMS = {
  key_missing: {
    code: 'idempotency_key_missing',
    type: 'urn:oncekey:problem:idempotency-key-missing',
    status: 400,
    stripeStatus: 400,
    stripeType: 'invalid_request_error',
    title: 'An idempotency key is required',
    detail:
      'This operation changes state and must be safe to retry. Send a unique value, such as a ' +
      'UUID, as the idempotency key, and send the same one again when you retry this request.',
  },
  key_malformed: {
    code: 'idempotency_key_malformed',
    type: 'urn:oncekey:problem:idempotency-key-malformed',
    status: 400,
    stripeStatus: 400,
    stripeType: 'invalid_request_error',
    title: 'The idempotency key is malformed',
    detail: 'The idempotency key cannot be read. Send a short printable value, such as a UUID.',
  },
  key_reused_with_different_payload: {
    code: 'idempotency_key_reused_with_different_payload',
    type: 'urn:oncekey:problem:idempotency-key-reused-with-different-payload',
    status: 422,
    stripeStatus: 400,
    stripeType: 'idempotency_error',
    title: 'The idempotency key was used for a different request',
    detail:
      'This key belongs to an earlier request with another method, URL or body. Use a new key ' +
      'for a new request; to retry the earlier one, repeat it unchanged.',
  },
  key_in_progress: {
    code: 'idempotency_key_in_progress',
    type: 'urn:oncekey:problem:idempotency-key-in-progress',
    status: 409,
    stripeStatus: 409,
    stripeType: 'idempotency_error',
    title: 'The first request with this key is still running',
    detail:
      'Nothing was done for this request. Retry it with the same key after the time given in ' +
      'Retry-After: you will get the reply of the first one.',
  },
  outcome_unknown: {
    code: 'idempotency_outcome_unknown',
    type: 'urn:oncekey:problem:idempotency-outcome-unknown',
    status: 409,
    stripeStatus: 409,
    stripeType: 'idempotency_error',
    title: 'The outcome of the first request is not known yet',
    detail:
      'The first request with this key was interrupted and may have taken effect. It will not ' +
      'run again until its outcome is known. Retry with the same key after the time given in ' +
      'Retry-After; a new key could do the work twice.',
  },
  store_unavailable: {
    code: 'idempotency_store_unavailable',
    type: 'urn:oncekey:problem:idempotency-store-unavailable',
    status: 503,
    stripeStatus: 503,
    stripeType: 'api_error',
    title: 'Requests cannot be made safe to retry at the moment',
    detail:
      'The request was not executed. Retry it with the same key after the time given in ' +
      'Retry-After.',
  },
  server_stopping: {
    code: 'idempotency_server_stopping',
    type: 'urn:oncekey:problem:idempotency-server-stopping',
    status: 503,
    stripeStatus: 503,
    stripeType: 'api_error',
    title: 'This server is stopping and takes no new requests',
    detail:
      'The request was not executed. Retry it with the same key after the time given in ' +
      'Retry-After: another server will take it.',
  },
  outcome_not_recorded: {
    code: 'idempotency_outcome_not_recorded',
    type: 'urn:oncekey:problem:idempotency-outcome-not-recorded',
    status: 503,
    stripeStatus: 503,
    stripeType: 'api_error',
    title: 'The request ran, but its outcome is not recorded yet',
    detail:
      'Do not treat this as a failure and do not use a new key. Retry with the same key after ' +
      'the time given in Retry-After: once the outcome is recorded you will get it.',
  },
  key_expired: {
    code: 'idempotency_key_expired',
    type: 'urn:oncekey:problem:idempotency-key-expired',
    status: 410,
    stripeStatus: 410,
    stripeType: 'idempotency_error',
    title: 'The idempotency key has expired',
    detail:
      'This key was used before, and the reply is no longer kept. Check whether the earlier ' +
      'request took effect; use a new key only for a request that is really new.',
  },
  rate_limited: {
    code: 'idempotency_rate_limited',
    type: 'urn:oncekey:problem:idempotency-rate-limited',
    status: 429,
    stripeStatus: 429,
    stripeType: 'invalid_request_error',
    title: 'Too many requests',
    detail:
      'Nothing was done for this request. An earlier request with its key may have been ' +
      'executed. Send it again with the same key, after the time given in Retry-After.',
  },
  request_too_old: {
    code: 'idempotency_request_too_old',
    type: 'urn:oncekey:problem:idempotency-request-too-old',
    status: 412,
    stripeStatus: 412,
    stripeType: 'idempotency_error',
    title: 'The request was first sent too long ago',
    detail:
      'Nothing was done for this request, because its first attempt is too old or lies in the ' +
      'future. An earlier attempt may have been executed. Check that before you send a new ' +
      'request with a new key.',
  },
  request_time_missing: {
    code: 'idempotency_request_time_missing',
    type: 'urn:oncekey:problem:idempotency-request-time-missing',
    status: 400,
    stripeStatus: 400,
    stripeType: 'invalid_request_error',
    title: 'The time of the first attempt is required',
    detail:
      'The request was not executed. It does not say when it was first sent, or not in a form ' +
      'that can be read.',
  },
  request_too_large: {
    code: 'idempotency_request_too_large',
    type: 'urn:oncekey:problem:idempotency-request-too-large',
    status: 413,
    stripeStatus: 413,
    stripeType: 'invalid_request_error',
    title: 'The request body is too large to be protected',
    detail: 'The request was not executed. Send a smaller body; the key may be used again.',
  },
  request_unreadable: {
    code: 'idempotency_request_unreadable',
    type: 'urn:oncekey:problem:idempotency-request-unreadable',
    status: 400,
    stripeStatus: 400,
    stripeType: 'invalid_request_error',
    title: 'The request body cannot be compared with that of a retry',
    detail:
      'The request was not executed. Its body is nested too deeply, or refers to itself. Send a ' +
      'flatter body; the key may be used again.',
  },
  reply_unreadable: {
    code: 'idempotency_reply_unreadable',
    type: 'urn:oncekey:problem:idempotency-reply-unreadable',
    status: 409,
    stripeStatus: 409,
    stripeType: 'idempotency_error',
    title: 'The recorded reply cannot be read',
    detail:
      'The request with this key was executed and will not run again, but this server cannot ' +
      'read the recorded reply. Retry with the same key later, or look up the result another way.',
  },
  accepted: {
    code: 'idempotency_accepted',
    type: 'urn:oncekey:problem:idempotency-accepted',
    status: 202,
    stripeStatus: 202,
    stripeType: undefined,
    title: 'The request is accepted and will be processed',
    detail:
      'Send the same request with the same key again, or request the URL in Location, after the ' +
      'time given in Retry-After.',
  },
  record_not_found: {
    code: 'idempotency_record_not_found',
    type: 'urn:oncekey:problem:idempotency-record-not-found',
    status: 404,
    stripeStatus: 404,
    stripeType: 'invalid_request_error',
    title: 'No request is recorded under this id',
    detail:
      'You have sent no request with this id, or its record is no longer kept. This does not ' +
      'mean that a request was not executed.',
  },
  retry_required: {
    code: 'idempotency_retry_required',
    type: 'urn:oncekey:problem:idempotency-retry-required',
    status: 409,
    stripeStatus: 409,
    stripeType: 'idempotency_error',
    title: 'The request was given up and must be sent again',
    detail:
      'Its last attempt failed and no process works on it, so there is nothing to wait for here. ' +
      'Send the same request with the same key again: it may run again.',
  },
  status_unavailable: {
    code: 'idempotency_status_unavailable',
    type: 'urn:oncekey:problem:idempotency-status-unavailable',
    status: 503,
    stripeStatus: 503,
    stripeType: 'api_error',
    title: 'The status of the request is not available at the moment',
    detail:
      'This says nothing about the request itself, which may be done or in progress. Ask here ' +
      'again after the time given in Retry-After.',
  },
} as const satisfies Record<string, Problem>

export type ProblemName = keyof typeof PROBLEMS

export type ProblemCode = (typeof PROBLEMS)[ProblemName]['code']
