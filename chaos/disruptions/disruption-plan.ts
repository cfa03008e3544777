/** The disruptions and their times: drawn from the seed like cards from a deck, so all occur. */
import { LEASE_MS, SILENCE_MS, STALL_MS } from '../settings.ts'
import { seeded, type Random } from '../random.ts'

export const DISRUPTION_KINDS = [
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

export type DisruptionKind = (typeof DISRUPTION_KINDS)[number]

export interface Disruption {
  readonly kind: DisruptionKind
  /** The index of the process within its role. */
  readonly which: 0 | 1
  /**
   * How long a process stays down, stalled or silent; for a cut, how long connections are cut
   * repeatedly.
   */
  readonly forMs: number
  /** The state of old connections after a silence. */
  readonly old: 'dead' | 'alive'
  /** The error of a clock: of one process, or of the machine that runs all of them. */
  readonly shiftMs: number
  readonly stepMs: number
  /** Pause before the next disruption. */
  readonly pauseMs: number
}

/** How often each kind is in the deck. */
const DECK: Readonly<Record<DisruptionKind, number>> = {
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
/** Two steps, back and forth, are added to the time that `PROVEN_AFTER_MS` has to cover. */
const STEP_MAX_MS = 500
/** After this many disruptions there is a pause, so that work can be done. */
const CALM_AFTER = 6
const CALM_MS = 2_000

/** Infinite: the caller stops when the time is over. */
export function* disruptionPlan(seed: number): Generator<Disruption, never> {
  const random = seeded(seed, 'disruption')
  const cards = DISRUPTION_KINDS.flatMap((kind) => Array.from({ length: DECK[kind] }, () => kind))
  for (let count = 1; ;) {
    for (const kind of random.shuffle(cards)) {
      const restMs = count++ % CALM_AFTER === 0 ? CALM_MS : 0
      yield { ...detailsOf(kind, random), pauseMs: random.between(200, 1_100) + restMs }
    }
  }
}

function detailsOf(kind: DisruptionKind, random: Random): Omit<Disruption, 'pauseMs'> {
  const which = random.chance(0.5) ? 0 : 1
  const sign = random.chance(0.5) ? 1 : -1
  const shiftMs = sign * random.between(1, 30) * HOUR_MS
  const stepMs = sign * random.between(50, STEP_MAX_MS)
  const old = random.chance(0.5) ? 'dead' : 'alive'
  return { kind, which, forMs: lengthOf(kind, random), old, shiftMs, stepMs }
}

function lengthOf(kind: DisruptionKind, random: Random): number {
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
