/** Reads, checks and sets the status and headers of a Node response. */
import { ServerResponse, type IncomingMessage } from 'node:http'
import type { HeaderPair } from '../../http/reply/stored-headers.ts'
import { codedError } from './node-errors.ts'
import type { RealMethods } from './response-methods.ts'

type HeaderValue = string | number | readonly string[]
type NamedHeader = readonly [name: string, value: HeaderValue]

export interface Status {
  readonly statusCode: number
  readonly statusMessage: string
}

export interface Head extends Status {
  readonly headers: readonly NamedHeader[]
}

/** Headers that describe one body. A reply with a different body must not carry them. */
export const BODY_HEADERS: ReadonlySet<string> = new Set([
  'content-disposition',
  'content-encoding',
  'content-language',
  'content-length',
  'content-location',
  'content-range',
  'content-type',
  'etag',
  'last-modified',
  'location',
  'transfer-encoding',
])

export function statusOf({ statusCode, statusMessage }: Status): Status {
  return { statusCode, statusMessage }
}

export function setStatus(res: ServerResponse, { statusCode, statusMessage }: Status): void {
  res.statusCode = statusCode
  res.statusMessage = statusMessage
}

/** Callers in JavaScript may set a status as text, and Express accepts it. */
export function statusNumber(status: unknown): number {
  return Number(status)
}

export function headOf(res: ServerResponse): Head {
  const { statusCode, statusMessage } = res
  return { headers: readHeaders(res), statusCode, statusMessage }
}

/** The headers of a response as they are recorded: lower-case names, one pair for each line. */
export function headerPairs(res: ServerResponse): HeaderPair[] {
  return readHeaders(res).flatMap(([name, value]) =>
    typeof value === 'object'
      ? value.map((line): HeaderPair => [name.toLowerCase(), line])
      : [[name.toLowerCase(), String(value)] as const],
  )
}

function readHeaders(res: ServerResponse): NamedHeader[] {
  const headers: NamedHeader[] = []
  // Every outgoing message has this method; Node's types declare it for requests only.
  const names = (res as unknown as { getRawHeaderNames(): string[] }).getRawHeaderNames()
  for (const name of names) {
    const value = res.getHeader(name)
    if (value !== undefined) headers.push([name, value])
  }
  return headers
}

/** Sets this head in place of the present one. */
export function setHead(
  res: ServerResponse,
  head: Head,
  { setHeader, removeHeader }: Pick<RealMethods, 'setHeader' | 'removeHeader'>,
): void {
  for (const name of res.getHeaderNames()) removeHeader.call(res, name)
  for (const [name, value] of head.headers) setHeader.call(res, name, value)
  setStatus(res, head)
}

/** A response that is never sent, with this head. */
export function scratchResponse(req: IncomingMessage, head: Head): ServerResponse {
  const scratch = new ServerResponse(req)
  for (const [name, value] of head.headers) scratch.setHeader(name, value)
  setStatus(scratch, head)
  return scratch
}

/** Sets the headers that `writeHead` got. In a list, one name may occur several times. */
export function replaceHeaders(
  res: ServerResponse,
  argument: unknown,
  real: Pick<RealMethods, 'setHeader' | 'appendHeader' | 'removeHeader'>,
): void {
  const headers = headersArgument(argument)
  const isList = Array.isArray(argument)
  if (isList) for (const [name] of headers) real.removeHeader.call(res, name)
  for (const [name, value] of headers) {
    if (!isList) real.setHeader.call(res, name, value)
    else real.appendHeader.call(res, name, typeof value === 'number' ? String(value) : value)
  }
}

/** Reads the headers of `writeHead`: an object, a list of pairs, or a flat list. */
function headersArgument(headers: unknown): NamedHeader[] {
  if (headers === undefined || headers === null) return []
  if (!Array.isArray(headers)) return Object.entries(headers as Record<string, HeaderValue>)
  const list: readonly unknown[] = headers
  if (Array.isArray(list[0])) return list as NamedHeader[]
  if (list.length % 2 !== 0) {
    const message = `a flat list of headers needs a value for each name, got ${list.length} items`
    throw codedError(TypeError, message, 'ERR_INVALID_ARG_VALUE')
  }
  const out: NamedHeader[] = []
  for (let i = 0; i < list.length; i += 2) out.push([String(list[i]), list[i + 1] as HeaderValue])
  return out
}

/** Refuses what Node would refuse, while the handler that passed it can still catch the error. */
export function checkHead(status: unknown, statusMessage: unknown): void {
  const code = statusNumber(status)
  if (!(code >= 100 && code < 1000)) {
    const message = `Invalid status code: ${String(status)}`
    throw codedError(RangeError, message, 'ERR_HTTP_INVALID_STATUS_CODE')
  }
  // A status message may hold what a header may: a tab and every visible character of Latin 1.
  if (typeof statusMessage === 'string' && !/^[\t\x20-\x7e\x80-\xff]*$/.test(statusMessage)) {
    throw codedError(TypeError, 'Invalid character in statusMessage', 'ERR_INVALID_CHAR')
  }
}
