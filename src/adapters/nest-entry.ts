/**
 * Tells when the method of a controller is entered. Pipes run between our interceptor and the
 * method, and Nest has no hook between them, so the method itself is wrapped when the app starts.
 */
import type { Type } from '@nestjs/common'
import { noteHandlerEntered } from '../http/current.ts'

type Method = (this: unknown, ...args: unknown[]) => unknown

/** By identity: a class may be a controller of several apps in one process. */
const watched = new WeakSet<object>()

/** Whether this method tells when it is entered. */
export function isWatchedMethod(handler: object): boolean {
  return watched.has(handler)
}

/** Wraps a method, an inherited one too. Nest reads it from the prototype when routes are made. */
export function watchMethod(owner: Type, name: string): void {
  const prototype = owner.prototype as Record<string, unknown>
  const method = prototype[name]
  if (typeof method !== 'function' || watched.has(method)) return
  const original = method as Method
  const entered: Method = function (...args) {
    noteHandlerEntered()
    return original.apply(this, args)
  }
  // Its name, and whatever else was put on it. `prototype` of a plain function is fixed.
  const { prototype: _prototype, ...own } = Object.getOwnPropertyDescriptors(original)
  Object.defineProperties(entered, own)
  for (const key of Reflect.getMetadataKeys(original) as unknown[]) {
    Reflect.defineMetadata(key, Reflect.getMetadata(key, original), entered)
  }
  const descriptor = { value: entered, configurable: true, writable: true, enumerable: false }
  // A frozen class stays as it is; its replies then count as those of the method.
  if (Reflect.defineProperty(prototype, name, descriptor)) watched.add(entered)
}
