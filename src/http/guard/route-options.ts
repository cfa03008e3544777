import { describe } from '../../core/options.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import type { GuardOptions } from './guard-options.ts'

/** Options of one route, which override those of all routes. */
export type RouteOptions<Request> = Partial<GuardOptions<Request>>

/** Groups of alternatives: a route that sets one of a group drops the others. */
const ALTERNATIVES = [
  ['keyHeader', 'keyField', 'keyFrom'],
  ['store', 'engine'],
] as const satisfies readonly (readonly (keyof GuardOptions<never>)[])[]

/** Returns the common options, overridden by those of one route. */
export function forRoute<Request>(
  options: GuardOptions<Request>,
  route: RouteOptions<Request>,
): GuardOptions<Request> {
  if (typeof route !== 'object' || route === null) {
    throw new InvalidOptionsError(`a route's options must be an object, got ${describe(route)}`)
  }
  const merged = { ...options }
  for (const names of ALTERNATIVES) {
    if (!names.some((name) => route[name] !== undefined)) continue
    for (const name of names) delete merged[name]
  }
  // The syntax applies to a header only.
  if (route.keyField !== undefined || route.keyFrom !== undefined) delete merged.keySyntax
  // `undefined` keeps the common value, so a condition that fails does not drop a `principal`.
  const own = Object.entries(route).filter(([, value]) => value !== undefined)
  return Object.assign(merged, Object.fromEntries(own))
}
