/**
 * The events by which a response reports its end, and who gets them. Listeners that were there
 * before the capture (outside) want to know about the client: a logger, the server. Listeners
 * added later belong to the handler. Once the client got another reply than the handler's, the
 * two groups get these events at different times.
 */
import type { ServerResponse } from 'node:http'

export const LAST_EVENTS = ['prefinish', 'finish', 'close'] as const

/** The outside listeners, a list for each of `LAST_EVENTS`. */
export type OutsideListeners = readonly (readonly unknown[])[]

export function outsideListeners(res: ServerResponse): OutsideListeners {
  return LAST_EVENTS.map((event) => res.rawListeners(event))
}

export function isLastEvent(event: string | symbol): boolean {
  return LAST_EVENTS.some((last) => last === event)
}

/** Returns whether the event had a listener, as `emit` does. */
export function emitOutside(
  res: ServerResponse,
  outside: OutsideListeners,
  event: string | symbol,
  args: unknown[],
): boolean {
  const listeners = res.rawListeners(event).filter((listener) => isOutside(outside, listener))
  for (const listener of listeners) Reflect.apply(listener, res, args)
  return listeners.length > 0
}

export function emitToHandler(
  res: ServerResponse,
  outside: OutsideListeners,
  event: (typeof LAST_EVENTS)[number],
): void {
  const listeners = res.rawListeners(event).filter((listener) => !isOutside(outside, listener))
  for (const listener of listeners) Reflect.apply(listener, res, [])
}

function isOutside(outside: OutsideListeners, listener: unknown): boolean {
  return outside.some((listeners) => listeners.includes(listener))
}
