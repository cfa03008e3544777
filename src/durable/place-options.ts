import { wholeNumber } from '../core/options.ts'

/** How a worker, a relay or a reconciler divides its places. */
export interface PlaceLimits {
  readonly places: number
  readonly perGroup: number
  readonly perTenant: number
  readonly reserve: number
  readonly overdueMax: number
}

export interface GivenPlaces {
  readonly concurrency: number | undefined
  readonly perGroup: number | undefined
  readonly perTenant: number | undefined
  readonly reserve: number | undefined
}

export interface PlaceBounds {
  /** Of `concurrency`. */
  readonly fallback: number
  readonly max: number
  /** What the option for one group is called: `perOperation`, `perTopic`. */
  readonly perGroup: string
}

/** The part of `concurrency` that comes on top of it for tenants and groups without a place. */
const RESERVE_PART = 0.4
/** One for a tenant, and one for an operation or topic. */
const RESERVE_MIN = 2
/** A few records that hang must not pause an operation or topic, however few places there are. */
const OVERDUE_MIN = 10

/** Checks the options that divide places, and fills in their defaults. */
export function resolvePlaces(
  where: string,
  given: GivenPlaces,
  { fallback, max, perGroup }: PlaceBounds,
): PlaceLimits {
  const number = (name: string, value: number | undefined, standard: number, min: number) =>
    wholeNumber(`${where}.${name}`, value, {
      fallback: standard,
      min,
      max: Math.max(max, standard),
    })
  const places = number('concurrency', given.concurrency, fallback, 1)
  const usual = Math.min(max, Math.max(RESERVE_MIN, Math.ceil(places * RESERVE_PART)))
  const reserve = number('reserve', given.reserve, usual, 0)
  // All there are: then the reserve alone says how many places one group or tenant may have.
  const all = places + reserve
  return {
    places,
    perGroup: number(perGroup, given.perGroup, all, 1),
    perTenant: number('perTenant', given.perTenant, all, 1),
    reserve,
    overdueMax: Math.max(OVERDUE_MIN, places),
  }
}
