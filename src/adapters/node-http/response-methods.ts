/** The methods of a response that a capture replaces. */
import type { ServerResponse } from 'node:http'

export const METHOD_NAMES = [
  'write',
  'end',
  'writeHead',
  'flushHeaders',
  'setHeader',
  'appendHeader',
  'removeHeader',
  'emit',
  'destroy',
  'addTrailers',
] as const satisfies readonly (keyof ServerResponse)[]

export type MethodName = (typeof METHOD_NAMES)[number]

/** The methods that the response had before the capture. */
export type RealMethods = Readonly<Pick<ServerResponse, MethodName>>

/** A captured reply: the methods that replace the real ones, and the state that is shown. */
export interface CapturedReply extends Record<MethodName, unknown> {
  write(chunk: unknown, encoding?: unknown, callback?: unknown): boolean
  end(chunk?: unknown, encoding?: unknown, callback?: unknown): unknown
  writeHead(status: number, ...rest: unknown[]): unknown
  flushHeaders(): void
  setHeader(...args: never[]): unknown
  appendHeader(...args: never[]): unknown
  removeHeader(...args: never[]): unknown
  emit(event: string | symbol, ...args: unknown[]): boolean
  destroy(error?: Error): unknown
  addTrailers(trailers: Parameters<ServerResponse['addTrailers']>[0]): void
  readonly isHeadWritten: boolean
  /** The handler has ended its reply. */
  readonly isEnded: boolean
  /** The guard has not decided yet what the client gets. */
  readonly isCaptured: boolean
  /** The client got a reply of the guard, and the handler may still write. */
  readonly isOrphaned: boolean
}

/** The methods of the last response. Most responses have the same, so one object serves them. */
let lastReal: RealMethods | undefined

export function realMethods(res: ServerResponse): RealMethods {
  if (lastReal !== undefined && hasMethods(res, lastReal)) return lastReal
  const { write, end, writeHead, flushHeaders, emit, destroy, addTrailers } = res
  const { setHeader, appendHeader, removeHeader } = res
  lastReal = {
    write,
    end,
    writeHead,
    flushHeaders,
    setHeader,
    appendHeader,
    removeHeader,
    emit,
    destroy,
    addTrailers,
  }
  return lastReal
}

function hasMethods(res: ServerResponse, real: RealMethods): boolean {
  return (
    res.write === real.write &&
    res.end === real.end &&
    res.writeHead === real.writeHead &&
    res.flushHeaders === real.flushHeaders &&
    res.setHeader === real.setHeader &&
    res.appendHeader === real.appendHeader &&
    res.removeHeader === real.removeHeader &&
    res.emit === real.emit &&
    res.destroy === real.destroy &&
    res.addTrailers === real.addTrailers
  )
}
