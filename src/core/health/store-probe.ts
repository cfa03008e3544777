import { callStore } from '../store/store-call.ts'
import type { Clock } from '../time/clock.ts'
import { withTimeLimit } from '../time/time-limit.ts'
import type { EventListener } from '../events.ts'
import { laneOf, type Lanes } from '../store/lane-of.ts'
import type { Renewal, Store } from '../store/store.ts'

/** A lease without a record: identities are hashes, and none consists of zeros only. */
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
  /** The time limit of a probe. */
  readonly limitMs: number
  readonly emit: EventListener
  /** The parts of the store that are probed separately. */
  readonly lanes: Lanes | undefined
  /** Whether a lane is left out, because its breaker already probes it. */
  readonly isRefusing: (lane: number) => boolean
  /** Lanes whose last call failed. A probe finds out whether they still fail. */
  readonly failing: () => readonly number[]
  /** Called after each probe of a lane, with its error if it failed. */
  readonly onLaneProbed: (lane: number, error?: unknown) => void
}

/**
 * Lanes that a probe of the whole store tries first. They are spread evenly: neighbouring lanes may
 * share a server, and the failure of one of three servers must not look like that of the store.
 */
const FIRST_LANES = 4

/** Lanes with a failed last call that are added to the first ones. */
const FAILING_LANES = 4

/** The other lanes are tried if the first ones do not answer within this part of the limit. */
const FIRST_PART = 1 / 2

/** Identities that the search for one of each lane tries. */
const IDENTITIES = 4_096

/** Finds out whether a store accepts writes. Concurrent probes of the same lane share one call. */
export class StoreProbe {
  readonly #options: StoreProbeOptions
  readonly #running = new Map<number | undefined, Promise<ProbeEnd>>()
  /** An absent lease for each lane, found at the first use. */
  #leases: ReadonlyMap<number, Renewal> | undefined
  #turn = 0

  constructor(options: StoreProbeOptions) {
    this.#options = options
  }

  /** Probes the whole store, which answers if any of its lanes does. Never rejects. */
  run(): Promise<ProbeEnd> {
    const isWhole = laneOf(this.#options.lanes, ABSENT_LEASE.identity) === undefined
    return this.#share(undefined, () => (isWhole ? this.#probe(ABSENT_LEASE) : this.#probeLanes()))
  }

  /** Probes one lane. Never rejects. */
  runIn(lane: number): Promise<ProbeEnd> {
    return this.#shareIn(lane, () => this.#probe(this.#leaseIn(lane)))
  }

  #shareIn(lane: number, send: () => Promise<ProbeEnd>): Promise<ProbeEnd> {
    return this.#share(lane, async () => {
      const end = await send()
      this.#options.onLaneProbed(lane, end.kind === 'failed' ? end.error : undefined)
      return end
    })
  }

  #share(lane: number | undefined, send: () => Promise<ProbeEnd>): Promise<ProbeEnd> {
    const running = this.#running.get(lane)
    if (running !== undefined) return running
    const probing = send().finally(() => this.#running.delete(lane))
    this.#running.set(lane, probing)
    return probing
  }

  /**
   * Probes a few lanes, and if none of them answers, all others: any server may have any lanes, and
   * a store is down only if no lane answers. Both rounds together keep the limit of one probe.
   */
  async #probeLanes(): Promise<ProbeEnd> {
    const { clock, limitMs } = this.#options
    const startedMs = clock.monotonicMs()
    const { first, others } = this.#nextLanes()
    const firstRound = firstAnswer(first.map((lane) => this.runIn(lane)))
    const end = await withTimeLimit(
      { clock, limitMs: limitMs * FIRST_PART, background: true, onLimit: () => undefined },
      () => firstRound,
    )
    if (end?.kind === 'answered' || others.length === 0) return firstRound
    const leftMs = Math.max(1, limitMs - (clock.monotonicMs() - startedMs))
    const more = others.map((lane) => {
      return this.#shareIn(lane, () => this.#call(this.#leaseIn(lane), leftMs))
    })
    return firstAnswer([firstRound, ...more])
  }

  /** Starts at another lane each time. */
  #nextLanes(): { readonly first: readonly number[]; readonly others: readonly number[] } {
    const { lanes, isRefusing, failing } = this.#options
    const all = Array.from({ length: lanes!.count }, (_, lane) => lane)
    const open = all.filter((lane) => !isRefusing(lane))
    const candidates = open.length > 0 ? open : all
    const { length } = candidates
    const turn = this.#turn++
    const spread = Array.from({ length: FIRST_LANES }, (_, n) => {
      return candidates[(turn + Math.floor((n * length) / FIRST_LANES)) % length]!
    })
    const suspects = failing().filter((lane) => candidates.includes(lane))
    const first = new Set([...spread, ...suspects.slice(0, FAILING_LANES)])
    return { first: [...first], others: candidates.filter((lane) => !first.has(lane)) }
  }

  #leaseIn(lane: number): Renewal {
    this.#leases ??= leasesOf(this.#options.lanes!)
    return this.#leases.get(lane) ?? ABSENT_LEASE
  }

  async #probe(lease: Renewal): Promise<ProbeEnd> {
    const { store, limitMs, emit } = this.#options
    const end = await this.#call(lease, limitMs)
    if (end.kind === 'answered') return end
    emit({ kind: 'store_error', store: store.name, call: 'probe', error: end.error })
    return end
  }

  /** Emits no event. If all lanes fail, the events of the first lanes are enough. */
  async #call(lease: Renewal, timeoutMs: number): Promise<ProbeEnd> {
    const { store, clock } = this.#options
    const details = { store: store.name, call: 'probe', timeoutMs }
    try {
      await callStore(clock, details, (signal) => writeNothing(store, lease, signal))
      return { kind: 'answered' }
    } catch (error) {
      return { kind: 'failed', error }
    }
  }
}

/** The first answer, or the last failure if there is none. */
function firstAnswer(probes: readonly Promise<ProbeEnd>[]): Promise<ProbeEnd> {
  let failed = 0
  return new Promise((resolve) => {
    for (const probe of probes) {
      void probe.then((end) => {
        if (end.kind === 'answered' || ++failed === probes.length) resolve(end)
      })
    }
  })
}

/** An absent lease for each lane for which a bounded search finds an identity. */
function leasesOf(lanes: Lanes): ReadonlyMap<number, Renewal> {
  const leases = new Map<number, Renewal>()
  for (let n = 0; n < IDENTITIES && leases.size < lanes.count; n++) {
    // Stores derive the lane from digits at either end of the identity, so both ends vary.
    const digits = n.toString(16).padStart(3, '0')
    const identity = `${digits}${ABSENT_LEASE.identity.slice(6)}${digits}`
    const lane = laneOf(lanes, identity)
    if (lane !== undefined && !leases.has(lane)) leases.set(lane, { ...ABSENT_LEASE, identity })
  }
  return leases
}

/**
 * A write that changes nothing. A read would also succeed on a standby, which accepts no writes. A
 * store whose `renew` reads first has a `probe` method.
 */
function writeNothing(store: Store, lease: Renewal, signal: AbortSignal): Promise<unknown> {
  if (store.probe === undefined) return store.renew([lease], signal)
  return store.probe(lease.identity, signal)
}
