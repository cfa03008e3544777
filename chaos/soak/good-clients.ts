/** Well-behaved clients: they pay, retry, send concurrent duplicates, change bodies, and read. */
import { randomUUID } from 'node:crypto'
import { Agent, request } from 'node:http'
import { text } from 'node:stream/consumers'
import type { Dice } from './dice.ts'

export const GOOD_TOKEN = 'soak-good'
export const GOOD_TENANT = 'tenant-good'

export interface GoodClients {
  readonly requests: () => number
  /** The first wrong answers. */
  readonly faults: readonly string[]
  readonly stop: () => Promise<void>
}

interface Answer {
  readonly status: number
  readonly isReplay: boolean
  readonly location: string
  readonly body: string
}

interface Paid {
  readonly key: string
  readonly body: object
  readonly answer: Answer
  readonly atMs: number
}

const CLIENTS = 4
/** Sockets of each client. */
const SOCKETS_MAX = 4
const FAULTS_MAX = 20
/** The latest payments of each client, which are retried and refunded later. */
const PAID_MAX = 20
/** An older payment may be past its retention when a retry arrives. */
const PAID_MS_MAX = 5_000
const ANSWER_MS_MAX = 30_000
const PAUSE_MS_MAX = 30
/** Limited, in progress or unknown: valid answers without a body to compare. */
const WAIT_STATUSES: ReadonlySet<number> = new Set([409, 429, 503])

export function startGoodClients(port: number, dice: Dice): GoodClients {
  const faults: string[] = []
  let requests = 0
  const stopped = new AbortController()
  const note = (fault: string) => {
    if (faults.length < FAULTS_MAX) faults.push(fault)
  }
  const one = async () => {
    const agent = new Agent({ keepAlive: true, maxSockets: SOCKETS_MAX })
    const send: Send = (method, path, options) => {
      requests++
      return exchange({ port, agent, method, path, ...options })
    }
    const client = new GoodClient(dice, send)
    while (!stopped.signal.aborted) {
      await client.act().then(
        (fault) => fault !== undefined && note(fault),
        (error: unknown) => note(String(error)),
      )
      await new Promise((resolve) => setTimeout(resolve, dice.below(PAUSE_MS_MAX)))
    }
    agent.destroy()
  }
  const running = Promise.all(Array.from({ length: CLIENTS }, one))
  return {
    requests: () => requests,
    faults,
    stop: async () => {
      stopped.abort()
      await running
    },
  }
}

type Send = (method: string, path: string, options?: SendOptions) => Promise<Answer>

interface SendOptions {
  readonly key?: string
  readonly body?: object
}

class GoodClient {
  readonly #dice: Dice
  readonly #send: Send
  readonly #paid: Paid[] = []

  constructor(dice: Dice, send: Send) {
    this.#dice = dice
    this.#send = send
  }

  /** Sends one request of a random kind. Returns what is wrong with the answer, if anything. */
  act(): Promise<string | undefined> {
    const acts = [
      () => this.#pay(),
      () => this.#pay(),
      () => this.#retry(),
      () => this.#change(),
      () => this.#payTwiceAtOnce(),
      () => this.#refund(),
      () => this.#order(),
      () => this.#transfer(),
      () => this.#look(),
    ]
    return this.#dice.pick(acts)()
  }

  async #pay(): Promise<string | undefined> {
    const [key, body] = [randomUUID(), this.#payment()]
    const answer = await this.#send('POST', '/payments', { key, body })
    if (answer.status !== 201) return unexpected('a payment', answer)
    this.#paid.push({ key, body, answer, atMs: performance.now() })
    if (this.#paid.length > PAID_MAX) this.#paid.shift()
    return answer.isReplay ? 'a new payment was answered with a replay' : undefined
  }

  async #retry(): Promise<string | undefined> {
    const paid = this.#recent()
    if (paid === undefined) return undefined
    const { key, body } = paid
    const answer = await this.#send('POST', '/payments', { key, body })
    if (answer.status !== 201) return unexpected('a retry', answer)
    if (answer.isReplay && answer.body === paid.answer.body) return undefined
    return `a retry got another reply: ${answer.body.slice(0, 200)}`
  }

  async #change(): Promise<string | undefined> {
    const paid = this.#recent()
    if (paid === undefined) return undefined
    const body = { ...paid.body, amountCents: 999_999 }
    const answer = await this.#send('POST', '/payments', { key: paid.key, body })
    return answer.status === 422 ? undefined : unexpected('another body under a key', answer)
  }

  async #payTwiceAtOnce(): Promise<string | undefined> {
    const [key, body] = [randomUUID(), this.#payment()]
    const pay = () => this.#send('POST', '/payments', { key, body })
    const answers = await Promise.all([pay(), pay()])
    const paid = answers.filter(({ status }) => status === 201)
    if (new Set(paid.map((answer) => answer.body)).size > 1) return 'two payments under one key'
    return answers.map((answer) => refusalIn('a duplicate', answer)).find(Boolean)
  }

  async #refund(): Promise<string | undefined> {
    const paid = this.#paid.shift()
    if (paid === undefined) return undefined
    const path = `${paid.answer.location}/refunds`
    const answer = await this.#send('POST', path, { key: randomUUID(), body: { amountCents: 1 } })
    return refusalIn('a refund', answer)
  }

  async #order(): Promise<string | undefined> {
    const body = {
      customerId: 'cus_soak',
      sku: this.#dice.pick(['tea', 'mug', 'none']),
      quantity: 1,
    }
    const answer = await this.#send('POST', '/orders', { key: randomUUID(), body })
    // Sold out, or an unknown product: valid answers.
    return answer.status < 500 ? undefined : refusalIn('an order', answer)
  }

  async #transfer(): Promise<string | undefined> {
    const body = { toAccount: 'acc_soak', amountCents: 100, currency: 'USD' }
    const answer = await this.#send('POST', '/transfers', { key: randomUUID(), body })
    if (answer.status !== 202) return unexpected('a transfer', answer)
    const status = await this.#send('GET', answer.location)
    return [200, 201, 202].includes(status.status) ? undefined : unexpected('its status', status)
  }

  async #look(): Promise<string | undefined> {
    const paid = this.#paid.at(-1)
    if (paid === undefined) return undefined
    const answer = await this.#send('GET', paid.answer.location)
    return answer.status === 200 ? undefined : unexpected('a payment that was made', answer)
  }

  /** The latest payment, if it is recent enough to be retried. */
  #recent(): Paid | undefined {
    const paid = this.#paid.at(-1)
    return paid !== undefined && performance.now() - paid.atMs < PAID_MS_MAX ? paid : undefined
  }

  #payment(): object {
    const amountCents = 1 + this.#dice.below(100_000)
    return { customerId: 'cus_soak', amountCents, currency: this.#dice.pick(['USD', 'KRW']) }
  }
}

function unexpected(what: string, { status, body }: Answer): string | undefined {
  if (WAIT_STATUSES.has(status)) return undefined
  return `${what} got ${status}: ${body.slice(0, 200)}`
}

function refusalIn(what: string, answer: Answer): string | undefined {
  return answer.status < 400 ? undefined : unexpected(what, answer)
}

interface Exchange extends SendOptions {
  readonly port: number
  readonly agent: Agent
  readonly method: string
  readonly path: string
}

/**
 * Retries if the server closed an idle connection at the moment of its reuse, which is no fault of
 * either side. The answer shows whether the first request was processed.
 */
async function exchange(sending: Exchange): Promise<Answer> {
  for (let stale = 0; ; stale++) {
    try {
      return await exchangeOnce(sending)
    } catch (error) {
      if (!(error instanceof StaleConnectionError) || stale === SOCKETS_MAX) throw error
    }
  }
}

class StaleConnectionError extends Error {}

function exchangeOnce({ port, agent, method, path, key, body }: Exchange): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const headers: Record<string, string> = { Authorization: `Bearer ${GOOD_TOKEN}` }
    if (key !== undefined) headers['Idempotency-Key'] = key
    if (body !== undefined) headers['Content-Type'] = 'application/json'
    const target = { host: '127.0.0.1', port, agent, method, path, headers }
    const req = request({ ...target, timeout: ANSWER_MS_MAX }, (res) => {
      text(res).then((received) => {
        resolve({
          status: res.statusCode ?? 0,
          isReplay: res.headers['idempotent-replayed'] !== undefined,
          location: res.headers.location ?? '',
          body: received,
        })
      }, reject)
    })
    req.once('error', (error: NodeJS.ErrnoException) => {
      const isStale = req.reusedSocket && error.code === 'ECONNRESET'
      reject(isStale ? new StaleConnectionError(error.message, { cause: error }) : error)
    })
    req.once('timeout', () => req.destroy(new Error(`no answer within ${ANSWER_MS_MAX} ms`)))
    req.end(body === undefined ? undefined : JSON.stringify(body))
  })
}
