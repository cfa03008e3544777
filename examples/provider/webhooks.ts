import { SIGNATURE_HEADER } from './contract.ts'
import type { Delivery, DeliveryQueue } from './delivery-queue.ts'
import { sign } from './signature.ts'

export interface WebhookTuning {
  /** For one answer of a receiver. @default 5000 */
  readonly timeoutMs?: number
  /** The pause after the first try that failed; each further one is twice as long. @default 250 */
  readonly firstRetryMs?: number
  /** The longest pause. @default 30000 */
  readonly retryMaxMs?: number
  /** Tries of one delivery, each at every receiver in turn. @default 12 */
  readonly triesMax?: number
  /** Deliveries that wait; events beyond are given up. @default 10000 */
  readonly queueMax?: number
  /** How long an event that is out of order waits for a later one. @default 500 */
  readonly heldMaxMs?: number
}

export interface WebhooksOptions {
  readonly queue: DeliveryQueue
  readonly secret: string
  readonly urls: readonly string[]
  readonly tuning: WebhookTuning
  readonly now: () => number
  readonly onError: (error: unknown) => void
}

export interface Webhooks {
  /** Looks for what is due. Called after each effect; by itself after each delivery. */
  wake(): void
  setUrls(urls: readonly string[]): void
  /** Deliveries whose last try has failed. */
  readonly givenUp: number
  /** Leaves what is not delivered on the disk, for the next start. */
  close(): Promise<void>
}

const CONCURRENT_MAX = 8
/** After an error of the disk. */
const PAUSE_MS = 1_000
/** Longer pauses are taken in pieces: timers end at 24 days. */
const TIMER_MAX_MS = 60_000

/** Delivers at least once, in the order of each effect, and never in the way of the API. */
export function createWebhooks(options: WebhooksOptions): Webhooks {
  return new QueuedWebhooks(options)
}

class QueuedWebhooks implements Webhooks {
  givenUp = 0
  readonly #options: WebhooksOptions
  readonly #underWay = new Map<number, Promise<void>>()
  readonly #closing = new AbortController()
  #urls: readonly string[]
  #turn = 0
  #timer: NodeJS.Timeout | undefined

  constructor(options: WebhooksOptions) {
    this.#options = options
    this.#urls = options.urls
  }

  setUrls(urls: readonly string[]): void {
    this.#urls = urls
    this.wake()
  }

  wake(): void {
    if (this.#closing.signal.aborted || this.#urls.length === 0) return
    if (this.#underWay.size >= CONCURRENT_MAX) return
    try {
      this.#start()
    } catch (error) {
      this.#options.onError(error)
      this.#wakeAfter(PAUSE_MS)
    }
  }

  async close(): Promise<void> {
    this.#closing.abort()
    clearTimeout(this.#timer)
    await Promise.all(this.#underWay.values())
  }

  /** Begins what is due and sets the alarm for what is not. */
  #start(): void {
    const now = this.#options.now()
    // Those under way are among them: there are always enough left to fill every place.
    for (const delivery of this.#options.queue.listNext(2 * CONCURRENT_MAX)) {
      if (this.#underWay.size >= CONCURRENT_MAX) return
      if (this.#underWay.has(delivery.number)) continue
      if (delivery.dueMs > now) return this.#wakeAfter(delivery.dueMs - now)
      const ended = this.#deliver(delivery)
        .catch((error: unknown) => {
          this.#options.onError(error)
          this.#wakeAfter(PAUSE_MS)
        })
        .finally(() => this.#underWay.delete(delivery.number))
      this.#underWay.set(delivery.number, ended)
      void ended.then(() => this.wake())
    }
  }

  #wakeAfter(delayMs: number): void {
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => this.wake(), Math.min(delayMs, TIMER_MAX_MS))
    this.#timer.unref()
  }

  async #deliver(delivery: Delivery): Promise<void> {
    const { queue, now, tuning } = this.#options
    const { firstRetryMs = 250, retryMaxMs = 30_000, triesMax = 12 } = tuning
    const isDelivered = await this.#tryEach(delivery.body)
    if (isDelivered) return queue.remove(delivery)
    if (this.#closing.signal.aborted) return
    if (delivery.tries + 1 >= triesMax) {
      this.givenUp++
      return queue.remove(delivery)
    }
    const pauseMs = Math.min(firstRetryMs * 2 ** delivery.tries, retryMaxMs)
    queue.postpone(delivery.number, now() + pauseMs)
  }

  /** Another receiver begins each time, and the others stand in for it. */
  async #tryEach(body: string): Promise<boolean> {
    const urls = this.#urls
    const first = this.#turn++
    for (let index = 0; index < urls.length; index++) {
      if (this.#closing.signal.aborted) return false
      if (await this.#send(urls[(first + index) % urls.length]!, body)) return true
    }
    return false
  }

  async #send(url: string, body: string): Promise<boolean> {
    const { secret, now, tuning } = this.#options
    const timeout = AbortSignal.timeout(tuning.timeoutMs ?? 5_000)
    try {
      const answer = await fetch(url, {
        method: 'POST',
        // Signed anew each time: a retry would otherwise be too old for its receiver.
        headers: {
          'Content-Type': 'application/json',
          [SIGNATURE_HEADER]: sign({ body, secret, now: now() }),
        },
        body,
        redirect: 'manual',
        signal: AbortSignal.any([timeout, this.#closing.signal]),
      })
      await answer.body?.cancel()
      return answer.ok
    } catch {
      // Whatever went wrong: it was not received, as far as anybody knows, and is sent again.
      return false
    }
  }
}
