/**
 * Whether a request was first sent too long ago to run. Tests: test/http/guard/request-age.test.ts.
 */
import { InvalidOptionsError } from '../../core/errors.ts'
import { describe, optionalFunction, wholeNumber } from '../../core/options.ts'
import { RETENTION_MS_MAX, type Policy } from '../../core/engine/policy.ts'
import { parseHttpDate } from '../../protocol/http-date.ts'
import type { HttpExchange } from './exchange.ts'
import type { GuardOptions } from './guard-options.ts'

export const FIRST_SENT_HEADER = 'Repeatability-First-Sent'

export interface RequestAgeRule<Request> {
  readonly maxMs: number
  readonly skewMs: number
  readonly requestTime: GuardOptions<Request>['requestTime']
}

/** Five minutes: what signed requests and tickets usually allow between two clocks. */
const SKEW_MS = 300_000

export function resolveRequestAge<Request>(
  options: Pick<GuardOptions<Request>, 'maxRequestAgeMs' | 'requestTime' | 'requestSkewMs'>,
): RequestAgeRule<Request> | undefined {
  const { maxRequestAgeMs, requestTime } = options
  optionalFunction('requestTime', requestTime)
  if (maxRequestAgeMs === undefined) {
    const name = requestTime === undefined ? 'requestSkewMs' : 'requestTime'
    if (options[name] === undefined) return undefined
    throw new InvalidOptionsError(`${name} needs maxRequestAgeMs, which says what is too old`)
  }
  const ms = (name: 'maxRequestAgeMs' | 'requestSkewMs', min: number, fallback: number) =>
    wholeNumber(name, options[name], { fallback, min, max: RETENTION_MS_MAX })
  return Object.freeze({
    maxMs: ms('maxRequestAgeMs', 1, 1),
    skewMs: ms('requestSkewMs', 0, SKEW_MS),
    requestTime,
  })
}

/**
 * Refuses a rule that lets a captured request run when its record has expired. The clock of its
 * client may have been ahead by the skew, so its time is later than it was sent.
 */
export function checkRequestAge(
  rule: Pick<RequestAgeRule<never>, 'maxMs' | 'skewMs'> | undefined,
  { retentionMs, afterExpiry, refuseForMs }: Policy,
): void {
  if (rule === undefined || (afterExpiry === 'refuse' && refuseForMs === undefined)) return
  const rememberedMs = retentionMs + (afterExpiry === 'refuse' ? (refuseForMs ?? 0) : 0)
  if (rule.maxMs + rule.skewMs <= rememberedMs) return
  throw new InvalidOptionsError(
    `maxRequestAgeMs (${rule.maxMs}) and requestSkewMs (${rule.skewMs}) together must not exceed ` +
      `the time for which a key is remembered (${rememberedMs}: retentionMs, and refuseForMs of ` +
      'afterExpiry), or a captured request runs again after that time: raise retentionMs, or ' +
      'lower maxRequestAgeMs',
  )
}

/** `missing`: the request has no time, or one that cannot be read. */
export type RequestAge = 'in_time' | 'too_old' | 'missing'

export async function requestAgeOf<Request>(
  rule: RequestAgeRule<Request>,
  { request, exchange }: { readonly request: Request; readonly exchange: HttpExchange },
  nowMs: number,
): Promise<RequestAge> {
  const sentMs =
    rule.requestTime === undefined
      ? parseHttpDate(exchange.header(FIRST_SENT_HEADER.toLowerCase()))
      : toMs(await rule.requestTime(request))
  if (sentMs === undefined) return 'missing'
  const ageMs = nowMs - sentMs
  return ageMs > rule.maxMs || ageMs < -rule.skewMs ? 'too_old' : 'in_time'
}

function toMs(time: unknown): number | undefined {
  if (time === undefined) return undefined
  if (time instanceof Date) {
    // The client has sent something that is no time.
    const ms = time.getTime()
    return Number.isNaN(ms) ? undefined : ms
  }
  throw new InvalidOptionsError(
    `requestTime(request) returned ${describe(time)}; it must return a Date, or undefined ` +
      'if the request has no time. Nothing was run or recorded',
  )
}
