import { wholeNumber } from '../../core/options.ts'

/** How a worker, a relay or a reconciler divides its places. */
export interface PlaceLimits {
  readonly places: number
  readonly perGroup: number
  readonly perTenant: number
  readonly reserve: number
  /** Overdue records or messages of one group from which on the group is paused. */
  readonly overdueMax: number
}

export interface PlaceOptions {
  readonly concurrency: number | undefined
  readonly perGroup: number | undefined
  readonly perTenant: number | undefined
  readonly reserve: number | undefined
}

export interface PlaceBounds {
  /** The default of `concurrency`. */
  readonly fallback: number
  readonly max: number
  /** The public name of the option for one group: `perOperation` or `perTopic`. */
  readonly perGroup: string
}

/** The default reserve, as a part of `concurrency`. */
const RESERVE_PART = 0.4
/** One place for a tenant, and one for an operation or topic. */
const RESERVE_MIN = 2
/** With few places, a few records that hang must not pause a whole operation or topic. */
const OVERDUE_MIN = 10

/** Checks the options that divide places, and fills in their defaults. */
export function resolvePlaces(
  where: string,
  options: PlaceOptions,
  { fallback, max, perGroup }: PlaceBounds,
): PlaceLimits {
  const number = (name: string, value: number | undefined, standard: number, min: number) =>
    wholeNumber(`${where}.${name}`, value, {
      fallback: standard,
      min,
      max: Math.max(max, standard),
    })
  const places = number('concurrency', options.concurrency, fallback, 1)
  const usual = Math.min(max, Math.max(RESERVE_MIN, Math.ceil(places * RESERVE_PART)))
  const reserve = number('reserve', options.reserve, usual, 0)
  // By default a group or tenant may have every place; only the reserve limits it then.
  const all = places + reserve
  return {
    places,
    perGroup: number(perGroup, options.perGroup, all, 1),
    perTenant: number('perTenant', options.perTenant, all, 1),
    reserve,
    overdueMax: Math.max(OVERDUE_MIN, places),
  }
}
