/**
 * Replaces the methods of a response at almost no cost: see `response-cover.ts`. Each assignment
 * is written out, because this runs for each request.
 */
import type { ServerResponse } from 'node:http'
import {
  METHOD_NAMES,
  type CapturedReply,
  type MethodName,
  type RealMethods,
} from './response-methods.ts'

const REPLY = Symbol('captured reply')

/** A response whose methods are replaced. */
type Covered = Record<MethodName, unknown> & { [REPLY]?: CapturedReply; readonly finished: boolean }

const replyOf = (res: Covered): CapturedReply => res[REPLY]!

const SHARED: Readonly<Record<MethodName, (this: Covered, ...args: never[]) => unknown>> = {
  write(chunk, encoding, callback) {
    return replyOf(this).write(chunk, encoding, callback)
  },
  end(chunk, encoding, callback) {
    return replyOf(this).end(chunk, encoding, callback)
  },
  writeHead(status, ...rest) {
    return replyOf(this).writeHead(status, ...rest)
  },
  flushHeaders() {
    return replyOf(this).flushHeaders()
  },
  setHeader(...args) {
    return replyOf(this).setHeader(...args)
  },
  appendHeader(...args) {
    return replyOf(this).appendHeader(...args)
  },
  removeHeader(...args) {
    return replyOf(this).removeHeader(...args)
  },
  emit(event, ...args) {
    return replyOf(this).emit(event, ...args)
  },
  destroy(error) {
    return replyOf(this).destroy(error)
  },
  addTrailers(trailers) {
    return replyOf(this).addTrailers(trailers)
  },
}

/** One getter and one setter for all responses: with its own, each would get a different shape. */
const WRITABLE_ENDED: PropertyDescriptor = {
  configurable: true,
  enumerable: true,
  get(this: Covered) {
    const reply = replyOf(this)
    return reply.isCaptured ? reply.isEnded : this.finished
  },
  set() {},
}

/** Returns `false`, and changes nothing, where assignments could not be undone. */
export function coverFast(response: ServerResponse, reply: CapturedReply): boolean {
  const res = response as unknown as Covered
  // The response is captured already: the shared functions can reach only one reply.
  if (res[REPLY] !== undefined || Object.hasOwn(res, 'writableEnded')) return false
  for (const name of METHOD_NAMES) {
    if (Object.hasOwn(res, name) && !isPlain(res, name)) return false
  }
  res[REPLY] = reply
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
 * Assigns the real methods again, except where another package has replaced ours: its method
 * calls ours, which calls the real one. `writeHead` is always assigned: see `ALWAYS_RESTORED`.
 */
export function uncoverFast(response: ServerResponse, real: RealMethods): void {
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
