/** What goes wrong, and when: drawn from the seed like a deck of cards, so that all of it comes. */
import { LEASE_MS, SILENCE_MS, STALL_MS } from '../settings.ts'
import { seeded, type Random } from '../random.ts'

export const MISCHIEF_KINDS = [
  'kill_api',
  'kill_worker',
  'kill_database',
  'cut_clients',
  'cut_database',
  'cut_provider',
  'silence_clients',
  'silence_database',
  'silence_provider',
  'stall_api',
  'stall_worker',
  'shift_clock',
] as const

export type MischiefKind = (typeof MISCHIEF_KINDS)[number]

export interface Mischief {
  readonly kind: MischiefKind
  /** Which of the two. */
  readonly which: 0 | 1
  /**
   * How long it stays down, stalled or silent; of a cut, how long connections are cut again and
   * again.
   */
  readonly forMs: number
  /** What becomes of the connections from before a silence. */
  readonly old: 'dead' | 'alive'
  /** By how much a clock goes wrong: of one process, or of the machine that all of them are on. */
  readonly shiftMs: number
  readonly stepMs: number
  /** Before the next one. */
  readonly pauseMs: number
}

/** How often each is in the deck. */
const DECK: Readonly<Record<MischiefKind, number>> = {
  kill_api: 2,
  kill_worker: 2,
  kill_database: 1,
  cut_clients: 2,
  cut_database: 2,
  cut_provider: 2,
  silence_clients: 1,
  silence_database: 2,
  silence_provider: 1,
  stall_api: 2,
  stall_worker: 1,
  shift_clock: 2,
}

const HOUR_MS = 3_600_000
/** Two steps, back and forth, are added to what `PROVEN_AFTER_MS` has to cover. */
const STEP_MAX_MS = 500
/** After so many, everything is left alone for a while: work must get done in between. */
const CALM_AFTER = 6
const CALM_MS = 2_000

/** Never ends: whoever takes from it stops when the time is over. */
export function* mischiefPlan(seed: number): Generator<Mischief, never> {
  const random = seeded(seed, 'mischief')
  const cards = MISCHIEF_KINDS.flatMap((kind) => Array.from({ length: DECK[kind] }, () => kind))
  for (let count = 1; ;) {
    for (const kind of random.shuffle(cards)) {
      const restMs = count++ % CALM_AFTER === 0 ? CALM_MS : 0
      yield { ...detailsOf(kind, random), pauseMs: random.between(200, 1_100) + restMs }
    }
  }
}

function detailsOf(kind: MischiefKind, random: Random): Omit<Mischief, 'pauseMs'> {
  const which = random.chance(0.5) ? 0 : 1
  const sign = random.chance(0.5) ? 1 : -1
  const shiftMs = sign * random.between(1, 30) * HOUR_MS
  const stepMs = sign * random.between(50, STEP_MAX_MS)
  const old = random.chance(0.5) ? 'dead' : 'alive'
  return { kind, which, forMs: lengthOf(kind, random), old, shiftMs, stepMs }
}

function lengthOf(kind: MischiefKind, random: Random): number {
  switch (kind) {
    case 'stall_api':
    case 'stall_worker':
      return random.between(STALL_MS.min, STALL_MS.max)
    case 'shift_clock':
      return random.between(LEASE_MS, 3 * LEASE_MS)
    case 'cut_clients':
    case 'cut_database':
    case 'cut_provider':
      return random.between(0, 600)
    case 'silence_clients':
    case 'silence_database':
      return random.between(SILENCE_MS.min, SILENCE_MS.max)
    case 'silence_provider':
      return random.between(SILENCE_MS.min, SILENCE_MS.providerMax)
    case 'kill_api':
    case 'kill_worker':
    case 'kill_database':
      return random.between(50, 900)
  }
}
