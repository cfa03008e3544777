import { SIGNATURE_HEADER } from './contract.ts'
import type { Delivery, DeliveryQueue } from './delivery-queue.ts'
import { sign } from './signature.ts'

export interface WebhookTuning {
  /** Timeout for the answer of a receiver. @default 5000 */
  readonly timeoutMs?: number
  /** The pause after the first failed try; each further pause is twice as long. @default 250 */
  readonly firstRetryMs?: number
  /** The longest pause. @default 30000 */
  readonly retryMaxMs?: number
  /** Tries of one delivery, each at every receiver in turn. @default 12 */
  readonly triesMax?: number
  /** The maximum number of waiting deliveries; further events are dropped. @default 10000 */
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
  /** Starts due deliveries. Called after each effect and after each delivery. */
  wake(): void
  setUrls(urls: readonly string[]): void
  /** The number of deliveries whose last try has failed. */
  readonly givenUp: number
  /** Leaves undelivered events on the disk for the next start. */
  close(): Promise<void>
}

const CONCURRENT_MAX = 8
/** Pause after a disk error. */
const PAUSE_MS = 1_000
/** Longer pauses are split, because timers end at 24 days. */
const TIMER_MAX_MS = 60_000

/** Delivers at least once, in order for each effect, without delaying the API. */
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

  /** Starts due deliveries, and sets a timer for the next one. */
  #start(): void {
    const now = this.#options.now()
    // Deliveries in progress are among them: there are always enough to fill every place.
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

  /** Starts with another receiver each time, and tries the others if it fails. */
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
        // Signed again for each try: an old signature would be rejected.
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
      // On any error the event counts as not received, and is sent again.
      return false
    }
  }
}
