import { systemClock, type Clock } from '../../core/clock.ts'
import type { DynamodbClient, Handler } from './client.ts'

/** The time that expiries go by. */
export interface StoreTime {
  /** Whether `nowMs` may be asked. Where it may not, any answer of the service changes that. */
  isKnown(): boolean
  nowMs(): number
}

/** A node's clock may be an hour off; an answer of the service says what time it is there. */
interface Reading {
  readonly serviceMs: number
  readonly monotonicMs: number
  readonly wallMs: number
}

/** An answer older than this tells the time no more: one read brings a new one. */
const READING_MS_MAX = 5 * 60 * 1000

/** Both clocks of the node must agree on the age of an answer, or one of them stood still. */
const DISAGREEMENT_MS_MAX = 1000

/** More than any working oscillator is off: what is counted from an answer falls short of it. */
const DRIFT = 0.001

/** The service's `Date` has whole seconds. */
const DATE_MS = 1000

/**
 * The service's wall time, from the `Date` of its answers and this node's monotonic clock in
 * between: never ahead of the service, and behind it by a second, the time that the answer took
 * and the drift at the most.
 *
 * DynamoDB has no clock in its conditions, so an expiry is judged here. Being behind is the safe
 * side: a record that was published to last until noon is then never given up before noon.
 */
export class ServiceTime implements StoreTime {
  readonly #clock: Clock
  #reading: Reading | undefined

  constructor(clock: Clock = systemClock) {
    this.#clock = clock
  }

  isKnown(): boolean {
    if (this.#reading === undefined) return false
    const byMonotonicMs = this.#clock.monotonicMs() - this.#reading.monotonicMs
    const byWallMs = this.#clock.nowMs() - this.#reading.wallMs
    // A machine that was suspended counts no monotonic time; one whose clock was set, no real one.
    const areAgreed = Math.abs(byWallMs - byMonotonicMs) <= DISAGREEMENT_MS_MAX
    return areAgreed && byMonotonicMs <= READING_MS_MAX
  }

  nowMs(): number {
    if (this.#reading === undefined) {
      throw new Error(
        'the answers of the service carry no Date header, or no x-amzn-requestid, by which they ' +
          "are known as its own, and without the service's time no expiry can be judged: let " +
          'whatever is between pass both on',
      )
    }
    return Math.floor(this.#at(this.#reading))
  }

  /** An answer to a request that was sent at `sentMs` has come, with this `Date`. */
  hear(date: string, sentMs: number): void {
    const dateMs = Date.parse(date)
    if (Number.isNaN(dateMs)) return
    const monotonicMs = this.#clock.monotonicMs()
    // It was written after the request was sent and before now, so the service's time is between
    // the two. What is known from earlier answers makes that narrower. Where it contradicts, it is
    // worth nothing, and the earliest time that fits this answer is the safe one.
    const latestMs = dateMs + DATE_MS + (monotonicMs - sentMs)
    const knownMs = this.#reading === undefined ? dateMs : this.#at(this.#reading)
    const serviceMs = knownMs > latestMs ? dateMs : Math.max(dateMs, knownMs)
    this.#reading = { serviceMs, monotonicMs, wallMs: this.#clock.nowMs() }
  }

  /** Listens to every answer that the client gets, whoever asked. */
  listenTo(client: DynamodbClient): void {
    const middleware =
      (next: Handler): Handler =>
      async (request) => {
        const sentMs = this.#clock.monotonicMs()
        const answer = await next(request)
        const date = dateOf(answer.response)
        if (date !== undefined) this.hear(date, sentMs)
        return answer
      }
    // The innermost place: answers that are errors have a date as well.
    client.middlewareStack.add(middleware, { step: 'deserialize', priority: 'low' })
  }

  #at({ serviceMs, monotonicMs }: Reading): number {
    return serviceMs + (this.#clock.monotonicMs() - monotonicMs) * (1 - DRIFT)
  }
}

/** One listener for a client, however many stores share it. */
const listeners = new WeakMap<DynamodbClient, ServiceTime>()

/** The clock that a test brings; otherwise the service's. */
export function timeOf(client: DynamodbClient, clock: Clock | undefined): StoreTime {
  if (clock !== undefined) return { isKnown: () => true, nowMs: () => clock.nowMs() }
  const known = listeners.get(client)
  if (known !== undefined) return known
  const time = new ServiceTime()
  time.listenTo(client)
  listeners.set(client, time)
  return time
}

/**
 * When the service has answered. A proxy that answers in its place (502) has a clock of its own,
 * but not the id that the service gives to every request.
 */
function dateOf(response: unknown): string | undefined {
  if (typeof response !== 'object' || response === null || !('headers' in response)) return
  const { headers } = response
  if (typeof headers !== 'object' || headers === null) return
  const byName = new Map(
    Object.entries(headers).map(([name, value]): [string, unknown] => [name.toLowerCase(), value]),
  )
  const date = byName.get('date')
  return byName.has('x-amzn-requestid') && typeof date === 'string' ? date : undefined
}
