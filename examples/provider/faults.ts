import { createHash } from 'node:crypto'
import type { Faults } from './contract.ts'

/** Probabilities, from 0 (never) to 1 (always). */
export const FAULT_NAMES = [
  'latency',
  'refuse',
  'dropRequest',
  'refuseQuery',
  'effectThenDrop',
  'effectThen500',
  'lateSuccess',
  'duplicateWebhook',
  'lostWebhook',
  'webhookOutOfOrder',
] as const

export type FaultName = (typeof FAULT_NAMES)[number]

const LIMIT_NAMES = ['latencyMaxMs', 'lateMaxMs'] as const

const LATENCY_MAX_MS = 200
const LATE_MAX_MS = 1_000
/** A longer time tests nothing, and timers end at 24 days. */
const LONGEST_MS = 24 * 60 * 60_000
/** A duplicate is delivered at once or a little later. */
const DUPLICATE_LATER_MS = 300

export type CheckedFaults =
  | { readonly kind: 'valid'; readonly faults: Faults }
  | { readonly kind: 'invalid'; readonly message: string }

/** Faults that replace the answer to a request. The first one drawn applies. */
const REQUEST_FAULTS = [
  'refuse',
  'dropRequest',
  'lateSuccess',
  'effectThenDrop',
  'effectThen500',
] as const

export type RequestFault = (typeof REQUEST_FAULTS)[number]

/** The faults of one request. */
export interface RequestFaults {
  readonly waitBeforeMs: number
  readonly waitAfterMs: number
  readonly end: 'answer' | RequestFault
  readonly lateMs: number
}

/** The faults of one event. Without deliveries it is lost. */
export interface EventFaults {
  /** One delay for each delivery. */
  readonly deliveriesAfterMs: readonly number[]
  readonly isHeldBack: boolean
}

export interface FaultPlan {
  ofRequest(): RequestFaults
  ofEvent(): EventFaults
  isQueryRefused(): boolean
  /**
   * Counts a fault that occurred. A drawn fault may not occur: a reused key is answered normally.
   */
  note(name: FaultName): void
  readonly counts: Readonly<Record<FaultName, number>>
  faults: Faults
}

/** Validates the faults of `PUT /faults` and `setFaults`. */
export function checkFaults(value: unknown): CheckedFaults {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    return invalid('Faults must be an object such as { "latency": 0.2 }.')
  }
  for (const [name, number] of Object.entries(value)) {
    if (FAULT_NAMES.some((known) => known === name)) {
      if (!isWithin(number, 1)) {
        return invalid(`${name} must be a number from 0 to 1, got ${JSON.stringify(number)}.`)
      }
    } else if (LIMIT_NAMES.some((known) => known === name)) {
      if (!isWithin(number, LONGEST_MS)) {
        const got = JSON.stringify(number)
        return invalid(`${name} must be a number from 0 to ${LONGEST_MS}, got ${got}.`)
      }
    } else {
      const known = [...FAULT_NAMES, ...LIMIT_NAMES].join(', ')
      return invalid(`There is no fault called ${JSON.stringify(name)}. There are: ${known}.`)
    }
  }
  return { kind: 'valid', faults: { ...value } }
}

/** Parses `latency=0.2,effectThenDrop=0.1` from the environment. */
export function parseFaults(text: string): CheckedFaults {
  const faults = new Map<string, number>()
  for (const part of text.split(',').map((each) => each.trim())) {
    if (part === '') continue
    const [, name, number] = /^(\w+)\s*=\s*(\d+(?:\.\d+)?)$/.exec(part) ?? []
    if (name === undefined || number === undefined) {
      return invalid(`${JSON.stringify(part)} is not of the form name=number.`)
    }
    if (faults.has(name)) return invalid(`${name} is given twice.`)
    faults.set(name, Number(number))
  }
  return checkFaults(Object.fromEntries(faults))
}

/**
 * Decides by the seed alone: the same seed and the same order of requests and events have the same
 * faults. Each fault has separate random numbers, so that a more frequent fault changes no other.
 */
export function createFaultPlan(faults: Faults, seed: number | string): FaultPlan {
  return new SeededFaultPlan(faults, seed)
}

class SeededFaultPlan implements FaultPlan {
  faults: Faults
  readonly counts = Object.fromEntries(FAULT_NAMES.map((name) => [name, 0])) as FaultCounts
  readonly #numbers: ReadonlyMap<FaultName, () => number>

  constructor(faults: Faults, seed: number | string) {
    this.faults = faults
    this.#numbers = new Map(FAULT_NAMES.map((name) => [name, createNumbers(`${seed}:${name}`)]))
  }

  ofRequest(): RequestFaults {
    const { latencyMaxMs = LATENCY_MAX_MS, lateMaxMs = LATE_MAX_MS } = this.faults
    // All numbers are drawn each time, so that the next request has the same numbers.
    const isSlow = this.#hits('latency')
    const waitMs = this.#draw('latency') * latencyMaxMs
    const share = this.#draw('latency')
    const hits = REQUEST_FAULTS.filter((name) => this.#hits(name))
    return {
      waitBeforeMs: isSlow ? waitMs * share : 0,
      waitAfterMs: isSlow ? waitMs * (1 - share) : 0,
      end: hits[0] ?? 'answer',
      lateMs: Math.ceil(this.#draw('lateSuccess') * lateMaxMs),
    }
  }

  ofEvent(): EventFaults {
    const isLost = this.#hits('lostWebhook')
    const isHeldBack = this.#hits('webhookOutOfOrder')
    const isRepeated = this.#hits('duplicateWebhook')
    const isThrice = this.#draw('duplicateWebhook') < 0.5
    const laterMs = Math.floor(this.#draw('duplicateWebhook') * DUPLICATE_LATER_MS)
    if (isLost) return { deliveriesAfterMs: [], isHeldBack }
    if (!isRepeated) return { deliveriesAfterMs: [0], isHeldBack }
    // The second copy is delivered at the same time: to another node, if there is one.
    return { deliveriesAfterMs: isThrice ? [0, 0, laterMs] : [0, 0], isHeldBack }
  }

  isQueryRefused(): boolean {
    return this.#hits('refuseQuery')
  }

  note(name: FaultName): void {
    this.counts[name]++
  }

  #hits(name: FaultName): boolean {
    return this.#draw(name) < (this.faults[name] ?? 0)
  }

  #draw(name: FaultName): number {
    return this.#numbers.get(name)!()
  }
}

type FaultCounts = Record<FaultName, number>

/** Pseudo-random numbers in the range [0, 1) that are the same for the same seed. */
function createNumbers(seed: string): () => number {
  let count = 0
  return () => {
    const digest = createHash('sha256').update(`${seed}:${count++}`).digest()
    return digest.readUIntBE(0, 6) / 2 ** 48
  }
}

function isWithin(value: unknown, max: number): boolean {
  return typeof value === 'number' && value >= 0 && value <= max
}

function invalid(message: string): CheckedFaults {
  return { kind: 'invalid', message }
}
