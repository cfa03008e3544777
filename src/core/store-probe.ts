import { answerWithin } from './answer-within.ts'
import type { Clock } from './clock.ts'
import type { EventListener } from './events.ts'
import type { Renewal, Store, StoreLanes } from './store.ts'

/** A lease without a record: identities are hashes, and no hash is all zeros. */
export const ABSENT_LEASE: Renewal = {
  identity: '0'.repeat(32),
  token: '0'.repeat(32),
  attempt: 1,
  leaseMs: 1,
}

export type ProbeEnd = { readonly kind: 'answered' } | { readonly kind: 'failed'; error: unknown }

export interface StoreProbeOptions {
  readonly store: Store
  readonly clock: Clock
  /** How long a probe may take. */
  readonly limitMs: number
  readonly emit: EventListener
  /** The parts of the store that are probed apart. */
  readonly lanes: Pick<StoreLanes, 'count' | 'of'> | undefined
  /** Lanes that are not worth asking: each is probed by itself until it answers. */
  readonly isRefusing: (lane: number) => boolean
  /** Hears how the probe of a lane ended. */
  readonly onLaneProbed: (lane: number, error?: unknown) => void
}

/**
 * So many lanes are asked whether the store as a whole takes writes, evenly apart: where lanes
 * next to each other share a server, the failure of one of three servers is not that of all.
 */
const LANES_ASKED = 4

/** Identities among which one is looked for in each lane. */
const IDENTITIES = 4_096

/** Asks a store whether it takes writes. One probe at a time; who asks meanwhile shares it. */
export class StoreProbe {
  readonly #options: StoreProbeOptions
  readonly #underWay = new Map<number | undefined, Promise<ProbeEnd>>()
  /** An absent lease in each lane, once they were looked for. */
  #leases: ReadonlyMap<number, Renewal> | undefined
  #turn = 0

  constructor(options: StoreProbeOptions) {
    this.#options = options
  }

  /** The whole store: it answers where any of its lanes does. Never rejects. */
  run(): Promise<ProbeEnd> {
    const isWhole = this.#options.lanes?.of(ABSENT_LEASE.identity) === undefined
    return this.#shared(undefined, () => (isWhole ? this.#ask(ABSENT_LEASE) : this.#askSome()))
  }

  /** One lane. Never rejects. */
  runIn(lane: number): Promise<ProbeEnd> {
    return this.#shared(lane, async () => {
      const end = await this.#ask(this.#leaseIn(lane))
      this.#options.onLaneProbed(lane, end.kind === 'failed' ? end.error : undefined)
      return end
    })
  }

  #shared(lane: number | undefined, ask: () => Promise<ProbeEnd>): Promise<ProbeEnd> {
    const known = this.#underWay.get(lane)
    if (known !== undefined) return known
    const asked = ask().finally(() => this.#underWay.delete(lane))
    this.#underWay.set(lane, asked)
    return asked
  }

  /** Ends with the first answer, or when all have failed. */
  #askSome(): Promise<ProbeEnd> {
    const lanes = this.#nextLanes()
    let failed = 0
    return new Promise((resolve) => {
      for (const lane of lanes) {
        void this.runIn(lane).then((end) => {
          if (end.kind === 'answered' || ++failed === lanes.length) resolve(end)
        })
      }
    })
  }

  /** Others each time. */
  #nextLanes(): readonly number[] {
    const { lanes, isRefusing } = this.#options
    const all = Array.from({ length: lanes!.count }, (_, lane) => lane)
    const open = all.filter((lane) => !isRefusing(lane))
    const among = open.length > 0 ? open : all
    const turn = this.#turn++
    const asked = Array.from({ length: LANES_ASKED }, (_, n) => {
      return among[(turn + Math.floor((n * among.length) / LANES_ASKED)) % among.length]!
    })
    return [...new Set(asked)]
  }

  #leaseIn(lane: number): Renewal {
    this.#leases ??= leasesOf(this.#options.lanes!)
    return this.#leases.get(lane) ?? ABSENT_LEASE
  }

  async #ask(lease: Renewal): Promise<ProbeEnd> {
    const { store, clock, limitMs, emit } = this.#options
    const details = { store: store.name, call: 'probe', timeoutMs: limitMs }
    try {
      await answerWithin(clock, details, (signal) => probe(store, lease, signal))
      return { kind: 'answered' }
    } catch (error) {
      emit({ kind: 'store_error', store: store.name, call: 'probe', error })
      return { kind: 'failed', error }
    }
  }
}

/** An absent lease in each lane, as far as a bounded search finds them. */
function leasesOf(lanes: Pick<StoreLanes, 'count' | 'of'>): ReadonlyMap<number, Renewal> {
  const leases = new Map<number, Renewal>()
  for (let n = 0; n < IDENTITIES && leases.size < lanes.count; n++) {
    // The lanes of hashes are told by some of their digits, and these reach both ends.
    const digits = n.toString(16).padStart(3, '0')
    const identity = `${digits}${ABSENT_LEASE.identity.slice(6)}${digits}`
    const lane = lanes.of(identity)
    if (lane !== undefined && !leases.has(lane)) leases.set(lane, { ...ABSENT_LEASE, identity })
  }
  return leases
}

/**
 * A write that changes nothing: a read would call a standby healthy that takes no writes. Where
 * renewing reads first, the store has a probe of its own.
 */
function probe(store: Store, lease: Renewal, signal: AbortSignal): Promise<unknown> {
  if (store.probe === undefined) return store.renew([lease], signal)
  return store.probe(lease.identity, signal)
}
