/** Depth to which the causes of an error are searched: drivers and query builders wrap errors. */
const CAUSES_MAX = 8

const ADVICE_BY_CODE: Readonly<Record<string, string>> = {
  ECONNREFUSED: 'check that the server runs, and that the client has its host and port',
  ENOENT: 'check that the server runs, and that the client has the path of its socket',
  ENOTFOUND: 'check the host name that the client connects to',
  EAI_AGAIN: 'check the host name that the client connects to, and that DNS answers',
  ETIMEDOUT: 'check that the server is up, and that no firewall drops its connections',
  EHOSTUNREACH: 'check the network between this process and the server',
  ENETUNREACH: 'check the network between this process and the server',
  ECONNRESET: 'check whether the server, or a proxy before it, restarts or closes connections',
  EPIPE: 'check whether the server, or a proxy before it, restarts or closes connections',
}

const NO_ANSWER =
  'check that the server is up and reachable, that its disk and replicas keep up, and that the ' +
  'client has free connections'

/** The store did not answer within the time limit of a call. */
export class NoAnswerError extends Error {
  constructor(timeoutMs: number) {
    super(`no answer within ${timeoutMs} ms`)
  }
}

/** Advice for network failures, which are the same for all stores. */
export function networkAdvice(cause: unknown): string | undefined {
  for (const error of causesOf(cause)) {
    if (error instanceof NoAnswerError) return NO_ANSWER
    const code = 'code' in error && typeof error.code === 'string' ? error.code : undefined
    if (code !== undefined && Object.hasOwn(ADVICE_BY_CODE, code)) return ADVICE_BY_CODE[code]
  }
  return undefined
}

/**
 * The message of an error. Node reports several failed connection attempts as an `AggregateError`
 * without a message; the message of its first error, or its code, then replaces it.
 */
export function messageOf(error: Error): string {
  if (error.message !== '') return error.message
  if (error instanceof AggregateError) {
    const first: unknown = error.errors[0]
    if (first instanceof Error && first.message !== '') return first.message
  }
  return 'code' in error && typeof error.code === 'string' ? error.code : error.name
}

function causesOf(cause: unknown): Error[] {
  const causes: Error[] = []
  let current = cause
  while (current instanceof Error && causes.length < CAUSES_MAX) {
    causes.push(current)
    current = current.cause
  }
  return causes
}
