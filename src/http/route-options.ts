import { describe } from '../core/options.ts'
import { InvalidOptionsError } from '../core/errors.ts'
import type { GuardOptions } from './guard-options.ts'

/** What a route may say differently from what was said for all of them. */
export type RouteOptions<Request> = Partial<GuardOptions<Request>>

/** Of these, whoever names one means it instead of the others. */
const ALTERNATIVES = [
  ['keyHeader', 'keyField', 'keyFrom'],
  ['store', 'engine'],
] as const satisfies readonly (readonly (keyof GuardOptions<never>)[])[]

/** The options of one route: its own word first, then what holds for all. */
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
  // How a key is written means nothing once it does not come in a header.
  if (route.keyField !== undefined || route.keyFrom !== undefined) delete merged.keySyntax
  // What is undefined says nothing: a principal, say, is not dropped by a condition that failed.
  const said = Object.entries(route).filter(([, value]) => value !== undefined)
  return Object.assign(merged, Object.fromEntries(said))
}
