/**
 * Puts the methods of a held response over those of the real one at next to no cost. Functions that
 * all responses share, as plain properties, and nothing is ever deleted: an object that gets
 * accessors or functions of its own, or loses a property, is slow in all that Node does with it
 * afterwards. Where that will not do, `Shadows` does it by the book.
 */
import type { ServerResponse } from 'node:http'
import type { RealMethods } from './outgoing.ts'

/** What a held response does in place of the real one. */
export interface HeldMethods {
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
  /** What the response shows; `undefined`: what it would show without us. */
  readonly shownEnded: boolean | undefined
}

export type MethodName = keyof RealMethods

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
] as const satisfies readonly MethodName[]

const HELD = Symbol('held')

/** A response over which our methods are put. */
type Covered = Record<MethodName, unknown> & { [HELD]?: HeldMethods; readonly finished: boolean }

const heldOf = (res: Covered): HeldMethods => res[HELD]!

const SHARED: Readonly<Record<MethodName, (this: Covered, ...args: never[]) => unknown>> = {
  write(chunk, encoding, callback) {
    return heldOf(this).write(chunk, encoding, callback)
  },
  end(chunk, encoding, callback) {
    return heldOf(this).end(chunk, encoding, callback)
  },
  writeHead(status, ...rest) {
    return heldOf(this).writeHead(status, ...rest)
  },
  flushHeaders() {
    return heldOf(this).flushHeaders()
  },
  setHeader(...args) {
    return heldOf(this).setHeader(...args)
  },
  appendHeader(...args) {
    return heldOf(this).appendHeader(...args)
  },
  removeHeader(...args) {
    return heldOf(this).removeHeader(...args)
  },
  emit(event, ...args) {
    return heldOf(this).emit(event, ...args)
  },
  destroy(error) {
    return heldOf(this).destroy(error)
  },
  addTrailers(trailers) {
    return heldOf(this).addTrailers(trailers)
  },
}

/** The same two functions for all, or each response would get a shape of its own. */
const WRITABLE_ENDED: PropertyDescriptor = {
  configurable: true,
  enumerable: true,
  get(this: Covered) {
    return heldOf(this).shownEnded ?? this.finished
  },
  set() {},
}

/** Puts ours over them. `false` where somebody has made of them what cannot be set back. */
export function coverQuickly(response: ServerResponse, held: HeldMethods): boolean {
  const res = response as unknown as Covered
  // One is held already. What it would pass on to would be us.
  if (res[HELD] !== undefined || Object.hasOwn(res, 'writableEnded')) return false
  for (const name of METHOD_NAMES) {
    if (Object.hasOwn(res, name) && !isPlain(res, name)) return false
  }
  res[HELD] = held
  res.write = SHARED.write
  res.end = SHARED.end
  res.writeHead = SHARED.writeHead
  res.flushHeaders = SHARED.flushHeaders
  res.setHeader = SHARED.setHeader
  res.appendHeader = SHARED.appendHeader
  res.removeHeader = SHARED.removeHeader
  res.emit = SHARED.emit
  res.destroy = SHARED.destroy
  res.addTrailers = SHARED.addTrailers
  Object.defineProperty(res, 'writableEnded', WRITABLE_ENDED)
  return true
}

/**
 * Gives the real methods back, except where others have put theirs over ours, and reach the real
 * ones through us. The head they have seen written: it is not written by them again.
 */
export function uncoverQuickly(response: ServerResponse, real: RealMethods): void {
  const res = response as unknown as Covered
  res.writeHead = real.writeHead
  if (res.write === SHARED.write) res.write = real.write
  if (res.end === SHARED.end) res.end = real.end
  if (res.flushHeaders === SHARED.flushHeaders) res.flushHeaders = real.flushHeaders
  if (res.setHeader === SHARED.setHeader) res.setHeader = real.setHeader
  if (res.appendHeader === SHARED.appendHeader) res.appendHeader = real.appendHeader
  if (res.removeHeader === SHARED.removeHeader) res.removeHeader = real.removeHeader
  if (res.emit === SHARED.emit) res.emit = real.emit
  if (res.destroy === SHARED.destroy) res.destroy = real.destroy
  if (res.addTrailers === SHARED.addTrailers) res.addTrailers = real.addTrailers
}

function isPlain(res: object, name: string): boolean {
  const { writable, configurable } = Object.getOwnPropertyDescriptor(res, name)!
  return writable === true && configurable === true
}
