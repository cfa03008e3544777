import { answerWithin } from './answer-within.ts'
import type { Clock } from './clock.ts'
import type { EventListener } from './events.ts'
import { laneOf, type Lanes } from './lane-of.ts'
import type { Renewal, Store } from './store.ts'

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
  readonly lanes: Lanes | undefined
  /** Lanes that are not worth asking: each is probed by itself until it answers. */
  readonly isRefusing: (lane: number) => boolean
  /** Lanes whose last call has failed: a probe finds out whether they still do. */
  readonly failing: () => readonly number[]
  /** Hears how the probe of a lane ended. */
  readonly onLaneProbed: (lane: number, error?: unknown) => void
}

/**
 * So many lanes are asked first whether the store as a whole takes writes, evenly apart: where
 * lanes next to each other share a server, the failure of one of three servers is not that of all.
 */
const LANES_ASKED = 4

/** Of those that fail, so many are asked as well. */
const FAILING_ASKED = 4

/** The others are asked when the first have given no answer for this part of the limit. */
const PART_OF_FIRST = 1 / 2

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
    const isWhole = laneOf(this.#options.lanes, ABSENT_LEASE.identity) === undefined
    return this.#shared(undefined, () => (isWhole ? this.#ask(ABSENT_LEASE) : this.#askLanes()))
  }

  /** One lane. Never rejects. */
  runIn(lane: number): Promise<ProbeEnd> {
    return this.#askIn(lane, () => this.#ask(this.#leaseIn(lane)))
  }

  #askIn(lane: number, ask: () => Promise<ProbeEnd>): Promise<ProbeEnd> {
    return this.#shared(lane, async () => {
      const end = await ask()
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

  /**
   * A few lanes, and where none of them answers, all others: servers may share the lanes in any
   * way, and a store is gone only where no lane answers. All of it takes as long as one probe may.
   */
  async #askLanes(): Promise<ProbeEnd> {
    const { clock, limitMs } = this.#options
    const startedMs = clock.monotonicMs()
    const { first, others } = this.#nextLanes()
    const asked = firstAnswer(first.map((lane) => this.runIn(lane)))
    const end = await this.#within(limitMs * PART_OF_FIRST, asked)
    if (end?.kind === 'answered' || others.length === 0) return asked
    const leftMs = Math.max(1, limitMs - (clock.monotonicMs() - startedMs))
    const more = others.map((lane) => {
      return this.#askIn(lane, () => this.#call(this.#leaseIn(lane), leftMs))
    })
    return firstAnswer([asked, ...more])
  }

  async #within(ms: number, asked: Promise<ProbeEnd>): Promise<ProbeEnd | undefined> {
    let cancel: () => void = () => undefined
    const over = new Promise<undefined>((resolve) => {
      cancel = this.#options.clock.after(ms, () => resolve(undefined), { background: true })
    })
    const end = await Promise.race([asked, over])
    cancel()
    return end
  }

  /** Others each time. */
  #nextLanes(): { readonly first: readonly number[]; readonly others: readonly number[] } {
    const { lanes, isRefusing, failing } = this.#options
    const all = Array.from({ length: lanes!.count }, (_, lane) => lane)
    const open = all.filter((lane) => !isRefusing(lane))
    const among = open.length > 0 ? open : all
    const turn = this.#turn++
    const asked = Array.from({ length: LANES_ASKED }, (_, n) => {
      return among[(turn + Math.floor((n * among.length) / LANES_ASKED)) % among.length]!
    })
    const suspects = failing().filter((lane) => among.includes(lane))
    const first = new Set([...asked, ...suspects.slice(0, FAILING_ASKED)])
    return { first: [...first], others: among.filter((lane) => !first.has(lane)) }
  }

  #leaseIn(lane: number): Renewal {
    this.#leases ??= leasesOf(this.#options.lanes!)
    return this.#leases.get(lane) ?? ABSENT_LEASE
  }

  async #ask(lease: Renewal): Promise<ProbeEnd> {
    const { store, limitMs, emit } = this.#options
    const end = await this.#call(lease, limitMs)
    if (end.kind === 'answered') return end
    emit({ kind: 'store_error', store: store.name, call: 'probe', error: end.error })
    return end
  }

  /** Reports no failure: that of all lanes is one, and the lanes asked first have reported it. */
  async #call(lease: Renewal, timeoutMs: number): Promise<ProbeEnd> {
    const { store, clock } = this.#options
    const details = { store: store.name, call: 'probe', timeoutMs }
    try {
      await answerWithin(clock, details, (signal) => probe(store, lease, signal))
      return { kind: 'answered' }
    } catch (error) {
      return { kind: 'failed', error }
    }
  }
}

/** The first answer, or the last failure where there is none. */
function firstAnswer(probes: readonly Promise<ProbeEnd>[]): Promise<ProbeEnd> {
  let failed = 0
  return new Promise((resolve) => {
    for (const asked of probes) {
      void asked.then((end) => {
        if (end.kind === 'answered' || ++failed === probes.length) resolve(end)
      })
    }
  })
}

/** An absent lease in each lane, as far as a bounded search finds them. */
function leasesOf(lanes: Lanes): ReadonlyMap<number, Renewal> {
  const leases = new Map<number, Renewal>()
  for (let n = 0; n < IDENTITIES && leases.size < lanes.count; n++) {
    // The lanes of hashes are told by some of their digits, and these reach both ends.
    const digits = n.toString(16).padStart(3, '0')
    const identity = `${digits}${ABSENT_LEASE.identity.slice(6)}${digits}`
    const lane = laneOf(lanes, identity)
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
