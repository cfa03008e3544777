/** The OpenAPI objects that describe keys: parameters, headers and responses. */
import { PROBLEMS, type Problem } from '../../protocol/problems.ts'
import type { Profile } from '../guard/answers.ts'

/** Any object of an OpenAPI document. */
export type Json = Record<string, unknown>

export interface PartsOptions {
  readonly profile: Profile
  readonly keyHeader: string
  readonly keyLengthMin: number
  readonly keyLengthMax: number
  readonly keyPattern: RegExp | undefined
  /** Only the quoted string of the draft is accepted, so the header contains the quotes. */
  readonly isQuoted: boolean
  readonly refusesExpired: boolean
  readonly refusesOld: boolean
  readonly isLimited: boolean
  readonly accepts: boolean
}

/** The parts of `components` that get additions. */
export type Section = 'headers' | 'parameters' | 'responses' | 'schemas'

/** Adds a component to the document and returns a reference to it. */
export type Add = (section: Section, name: string, component: Json) => Json

const EXAMPLE_KEY = '8e03978e-40d5-43e8-bc93-6894a57f9324'

export function keyParameter(options: PartsOptions, required: boolean): Json {
  const { keyHeader, keyLengthMin, keyLengthMax, keyPattern, isQuoted } = options
  const length = EXAMPLE_KEY.length
  const isExample = keyPattern === undefined && length >= keyLengthMin && length <= keyLengthMax
  const quotes = isQuoted ? 2 : 0
  return {
    name: keyHeader,
    in: 'header',
    required,
    description:
      'A unique value, such as a UUID, that makes this request safe to retry: send the same ' +
      'value again when you repeat the request, and the request takes effect once. ' +
      (required ? 'Requests without it are refused.' : 'Without it, a retry may act twice.'),
    schema: {
      type: 'string',
      minLength: keyLengthMin + quotes,
      maxLength: keyLengthMax + quotes,
      ...patternOf(options),
    },
    ...(isExample ? { example: isQuoted ? `"${EXAMPLE_KEY}"` : EXAMPLE_KEY } : {}),
  }
}

/** No pattern is better than a pattern that refuses keys that the guard accepts. */
function patternOf({ keyPattern, isQuoted }: PartsOptions): Json {
  if (isQuoted) return { pattern: '^".*"$' }
  const isPlain = keyPattern !== undefined && !/[ims]/.test(keyPattern.flags)
  return isPlain ? { pattern: keyPattern.source } : {}
}

const EXPIRES: Json = {
  description:
    'The time until which the reply of this key is kept, as an HTTP date. Only recorded replies ' +
    'and their replays have it.',
  schema: { type: 'string' },
  example: 'Tue, 17 Nov 2026 08:00:00 GMT',
}

const REPLAYED: Json = {
  description: 'Present if this is the reply of an earlier request with the same key.',
  schema: { type: 'string', enum: ['true'] },
}

const RETRY_AFTER: Json = {
  description: 'The number of seconds to wait before the next attempt, which uses the same key.',
  schema: { type: 'integer', minimum: 1 },
}

const RATE_LIMIT: Json = {
  description: 'What is left of the limit: `r` requests, and `t` seconds until it is renewed.',
  schema: { type: 'string' },
  example: '"new-keys";r=0;t=30',
}

const RATE_LIMIT_POLICY: Json = {
  description: 'The limit: `q` requests within `w` seconds.',
  schema: { type: 'string' },
  example: '"new-keys";q=100;w=60',
}

const LOCATION: Json = {
  description: 'The URL of the status of the request.',
  schema: { type: 'string', format: 'uri-reference' },
}

/** The headers of recorded replies and their replays. */
export function replyHeaders(add: Add): Json {
  return {
    'Idempotency-Expires': add('headers', 'IdempotencyExpires', EXPIRES),
    'Idempotent-Replayed': add('headers', 'IdempotentReplayed', REPLAYED),
  }
}

export interface DescribedResponse {
  readonly status: string
  readonly mediaType: string
  readonly response: Json
}

/** One response for each status of the problems that the guard sends. */
export function guardResponses(
  options: PartsOptions,
  required: boolean,
  add: Add,
): DescribedResponse[] {
  return describeAll(guardProblems(options, required), options, add)
}

/** One response for each status that the status handler sends besides recorded replies. */
export function statusResponses(options: PartsOptions, add: Add): DescribedResponse[] {
  const names = options.isLimited ? [...STATUS_PROBLEMS, 'rate_limited' as const] : STATUS_PROBLEMS
  const problems = names.map((name): Problem => PROBLEMS[name])
  return [progressResponse(add), ...describeAll(problems, options, add)]
}

/** Problems that only the status handler sends. */
const STATUS_ONLY = ['record_not_found', 'retry_required', 'status_unavailable'] as const

const STATUS_PROBLEMS = [
  ...STATUS_ONLY,
  'outcome_unknown',
  'reply_unreadable',
  'key_expired',
] as const

function describeAll(
  problems: readonly Problem[],
  options: PartsOptions,
  add: Add,
): DescribedResponse[] {
  const byStatus = new Map<number, Problem[]>()
  for (const problem of problems) {
    const status = statusOf(problem, options.profile)
    byStatus.set(status, [...(byStatus.get(status) ?? []), problem])
  }
  return [...byStatus].map(([status, same]) => describe(status, same, options, add))
}

function guardProblems(options: PartsOptions, required: boolean): Problem[] {
  const { refusesExpired, refusesOld, isLimited, accepts } = options
  const omitted = new Set<string>(STATUS_ONLY)
  if (!required) omitted.add('key_missing')
  if (!refusesExpired) omitted.add('key_expired')
  if (!refusesOld) omitted.add('request_too_old').add('request_time_missing')
  if (!isLimited) omitted.add('rate_limited')
  if (!accepts) omitted.add('accepted')
  return Object.entries(PROBLEMS)
    .filter(([name]) => !omitted.has(name))
    .map(([, problem]) => problem)
}

function statusOf(problem: Problem, profile: Profile): number {
  return profile === 'stripe' ? problem.stripeStatus : problem.status
}

function describe(
  status: number,
  problems: readonly Problem[],
  { profile }: PartsOptions,
  add: Add,
): DescribedResponse {
  const isStripe = profile === 'stripe' && status >= 400
  const mediaType = status < 400 || isStripe ? 'application/json' : 'application/problem+json'
  const schema = isStripe
    ? add('schemas', 'IdempotencyError', stripeSchema())
    : add('schemas', 'IdempotencyProblem', problemSchema())
  const examples = problems.map((problem) => {
    const value = isStripe ? stripeBody(problem) : problemBody(problem, status)
    return [problem.code, { summary: problem.title, value }] as const
  })
  const headers = {
    ...(status === 429
      ? {
          RateLimit: add('headers', 'RateLimit', RATE_LIMIT),
          'RateLimit-Policy': add('headers', 'RateLimitPolicy', RATE_LIMIT_POLICY),
        }
      : {}),
    ...(RETRIED_STATUS.has(status)
      ? { 'Retry-After': add('headers', 'IdempotencyRetryAfter', RETRY_AFTER) }
      : {}),
    // A recorded reply may be a 202, too, and has these headers.
    ...(status === 202
      ? { Location: add('headers', 'IdempotencyLocation', LOCATION), ...replyHeaders(add) }
      : {}),
  }
  const response: Json = {
    description: problems.map(({ title, code }) => `${title} (\`${code}\`).`).join(' '),
    ...(Object.keys(headers).length === 0 ? {} : { headers }),
    content: { [mediaType]: { schema, examples: Object.fromEntries(examples) } },
  }
  return { status: String(status), mediaType, response }
}

function progressResponse(add: Add): DescribedResponse {
  const mediaType = 'application/json'
  const schema = add('schemas', 'IdempotencyProgress', progressSchema())
  const response: Json = {
    description: 'The request is accepted or in progress, and has no reply yet.',
    headers: {
      'Retry-After': add('headers', 'IdempotencyRetryAfter', RETRY_AFTER),
      Location: add('headers', 'IdempotencyLocation', LOCATION),
      // A recorded reply may have this status, too.
      ...replyHeaders(add),
    },
    content: { [mediaType]: { schema } },
  }
  return { status: '202', mediaType, response }
}

function progressSchema(): Json {
  return {
    description: 'The state of a request that has no reply yet.',
    type: 'object',
    required: ['status', 'recordId', 'createdAt', 'code'],
    properties: {
      status: { type: 'string', enum: ['pending', 'in_progress'] },
      recordId: { type: 'string', format: 'uuid' },
      createdAt: { type: 'string', format: 'date-time' },
      code: { type: 'string', enum: [PROBLEMS.accepted.code] },
    },
  }
}

/** Statuses whose problems may have `Retry-After`. */
const RETRIED_STATUS: ReadonlySet<number> = new Set([202, 409, 429, 503])

function problemBody({ type, title, detail, code }: Problem, status: number): Json {
  return { type, title, status, detail, code }
}

function stripeBody({ stripeType, code, title, detail }: Problem): Json {
  return { error: { type: stripeType, code, message: `${title}. ${detail}` } }
}

const codes = (): string[] => Object.values(PROBLEMS).map(({ code }) => code)

function problemSchema(): Json {
  return {
    description: 'An answer of the idempotency guard (RFC 9457). Branch on `code`.',
    type: 'object',
    required: ['type', 'title', 'status', 'detail', 'code'],
    properties: {
      type: { type: 'string', format: 'uri-reference' },
      title: { type: 'string' },
      status: { type: 'integer' },
      detail: { type: 'string' },
      code: { type: 'string', enum: codes() },
    },
  }
}

function stripeSchema(): Json {
  return {
    description: 'An answer of the idempotency guard. Branch on `code`.',
    type: 'object',
    required: ['error'],
    properties: {
      error: {
        type: 'object',
        required: ['type', 'code', 'message'],
        properties: {
          type: { type: 'string', enum: STRIPE_TYPES },
          code: { type: 'string', enum: codes() },
          message: { type: 'string' },
        },
      },
    },
  }
}

const STRIPE_TYPES = ['api_error', 'idempotency_error', 'invalid_request_error']
