/**
 * Reports when the method of a controller is entered. Pipes run between the interceptor and the
 * method, and Nest has no hook behind them, so the method is wrapped when the app starts.
 */
import type { Type } from '@nestjs/common'
import { noteHandlerEntered } from '../../http/guard/current.ts'

type Method = (this: unknown, ...args: unknown[]) => unknown

/** The wrapped methods. Apps in one process may share a controller, which is wrapped once. */
const watched = new WeakSet<object>()

/** Whether this method reports when it is entered. */
export function isWatchedMethod(handler: object): boolean {
  return watched.has(handler)
}

/** Wraps an own or inherited method on the prototype, where Nest reads it to create the route. */
export function watchMethod(owner: Type, name: string): void {
  const prototype = owner.prototype as Record<string, unknown>
  const method = prototype[name]
  if (typeof method !== 'function' || watched.has(method)) return
  const original = method as Method
  const wrapped: Method = function (...args) {
    noteHandlerEntered()
    return original.apply(this, args)
  }
  // Decorators and callers may read the name and other properties of the method. `prototype` of a
  // plain function is not configurable.
  const { prototype: _prototype, ...own } = Object.getOwnPropertyDescriptors(original)
  Object.defineProperties(wrapped, own)
  for (const key of Reflect.getMetadataKeys(original) as unknown[]) {
    Reflect.defineMetadata(key, Reflect.getMetadata(key, original), wrapped)
  }
  const descriptor = { value: wrapped, configurable: true, writable: true, enumerable: false }
  // A frozen class stays unwrapped, and replies of its pipes count as replies of the method.
  if (Reflect.defineProperty(prototype, name, descriptor)) watched.add(wrapped)
}
