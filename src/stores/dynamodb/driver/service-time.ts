/**
 * The time of the service, from its answers.
 *
 * Tests: test/stores/dynamodb/time.slow.test.ts.
 */
import { systemClock, type Clock } from '../../../core/time/clock.ts'
import type { DynamodbClient, Handler } from '../client.ts'

/** The time by which expiries are judged. */
export interface StoreTime {
  /** Whether `nowMs` may be used. If not, any answer of the service makes the time known. */
  isKnown(): boolean
  nowMs(): number
}

/** The time in an answer of the service, and the clocks of this node when the answer arrived. */
interface Reading {
  readonly serviceMs: number
  readonly monotonicMs: number
  readonly wallMs: number
}

/** A reading older than this is not used. One read brings a new one. */
const READING_MS_MAX = 5 * 60 * 1000

/** If the clocks of the node disagree more on the age of a reading, one has stopped or was set. */
const DISAGREEMENT_MS_MAX = 1000

/** More than the error of any working oscillator, so that extrapolated time is never ahead. */
const DRIFT = 0.001

/** The `Date` header has whole seconds. */
const DATE_MS = 1000

/**
 * The service's wall time, from the `Date` of its answers and this node's monotonic clock between
 * them. Never ahead of the service, and behind it by at most one second, the time that the answer
 * took, and the drift.
 *
 * DynamoDB has no clock in its conditions, and a node's wall clock may be wrong by an hour, so
 * expiries are judged by this time. Being behind is safe: a record whose published expiry is noon
 * is never treated as expired before noon.
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
    // Monotonic time stops while a machine is suspended. Wall time jumps when the clock is set.
    const areAgreed = Math.abs(byWallMs - byMonotonicMs) <= DISAGREEMENT_MS_MAX
    return areAgreed && byMonotonicMs <= READING_MS_MAX
  }

  nowMs(): number {
    if (this.#reading === undefined) {
      throw new Error(
        'the answers carry no Date header, or no x-amzn-requestid header that marks them as ' +
          "answers of DynamoDB. Without the service's time no expiry can be judged: let proxies " +
          'in front of the service pass on both headers',
      )
    }
    return Math.floor(this.#at(this.#reading))
  }

  /** Updates the time from the `Date` of an answer. `sentMs`: when its request was sent. */
  update(date: string, sentMs: number): void {
    const dateMs = Date.parse(date)
    if (Number.isNaN(dateMs)) return
    const monotonicMs = this.#clock.monotonicMs()
    // The service wrote the date after the request was sent and before now, so its time now is
    // between `dateMs` and `latestMs`. Earlier answers narrow this range. If they contradict it,
    // they are wrong, and the earliest time that fits this answer is the safe one.
    const latestMs = dateMs + DATE_MS + (monotonicMs - sentMs)
    const knownMs = this.#reading === undefined ? dateMs : this.#at(this.#reading)
    const serviceMs = knownMs > latestMs ? dateMs : Math.max(dateMs, knownMs)
    this.#reading = { serviceMs, monotonicMs, wallMs: this.#clock.nowMs() }
  }

  /** Reads the date of every answer that the client gets, also to calls of the application. */
  listenTo(client: DynamodbClient): void {
    const middleware =
      (next: Handler): Handler =>
      async (request) => {
        const sentMs = this.#clock.monotonicMs()
        const answer = await next(request)
        const date = dateOf(answer.response)
        if (date !== undefined) this.update(date, sentMs)
        return answer
      }
    // The innermost position also gets error answers, which have a date, too.
    client.middlewareStack.add(middleware, { step: 'deserialize', priority: 'low' })
  }

  #at({ serviceMs, monotonicMs }: Reading): number {
    return serviceMs + (this.#clock.monotonicMs() - monotonicMs) * (1 - DRIFT)
  }
}

/** One for each client, even if several stores share it. */
const listeners = new WeakMap<DynamodbClient, ServiceTime>()

/** The time of the test clock, if there is one, or else of the service. */
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
 * The `Date` of an answer of the service. A proxy that answers in place of the service (502) uses
 * another clock, but does not send the request id that every answer of the service has.
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
