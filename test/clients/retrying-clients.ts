/** Common HTTP clients, each configured to retry a POST. */
import axios from 'axios'
import axiosRetry from 'axios-retry'
import { got } from 'got'
import ky from 'ky'
import { Agent, interceptors, request, RetryAgent, type Dispatcher } from 'undici'
import { onTestFinished } from 'vitest'

export interface PaymentOrder {
  readonly url: string
  readonly key: string
  readonly amount: number
}

export interface FinalAnswer {
  readonly status: number
  readonly replayed: string | undefined
  readonly body: Buffer
}

export interface RetryingClient {
  readonly name: string
  /** Whether the client retries when a reply breaks off in the middle of its body. */
  readonly retriesHalfReplies: boolean
  /** Makes one payment, with retries. Rejects when the client gives up. */
  pay(order: PaymentOrder, pause: Pause): Promise<FinalAnswer>
}

/** The pause of a client between two tries. */
export interface Pause {
  /** Replaces the default pause of the client. */
  readonly ms: number
  /** The maximum pause, even if `Retry-After` asks for more. */
  readonly msMax: number
}

/** Clients retry without a pause. A test's event happens before one of the many retries. */
export const AT_ONCE: Pause = { ms: 5, msMax: 5 }

const RETRIES = 200

/** Statuses that are retried. Every other status is an answer. */
const RETRIED_STATUSES = [408, 409, 425, 429, 500, 502, 503, 504]

const byGot: RetryingClient = {
  name: 'got',
  retriesHalfReplies: true,
  async pay({ url, key, amount }, { ms, msMax }) {
    const reply = await got.post(url, {
      json: { amount },
      headers: { 'idempotency-key': key },
      responseType: 'buffer',
      retry: {
        limit: RETRIES,
        methods: ['POST'],
        statusCodes: RETRIED_STATUSES,
        backoffLimit: ms,
        // got gives up when the delay is 0.
        calculateDelay: ({ computedValue }) => Math.min(computedValue, msMax),
      },
    })
    const replayed = reply.headers['idempotent-replayed']?.toString()
    return { status: reply.statusCode, replayed, body: Buffer.from(reply.body) }
  },
}

const byKy: RetryingClient = {
  name: 'ky',
  // ky resolves when the headers have arrived, so the body is read without retries.
  retriesHalfReplies: false,
  async pay({ url, key, amount }, { ms, msMax }) {
    const reply = await ky.post(url, {
      json: { amount },
      headers: { 'idempotency-key': key },
      retry: {
        limit: RETRIES,
        methods: ['post'],
        statusCodes: RETRIED_STATUSES,
        afterStatusCodes: RETRIED_STATUSES,
        delay: () => ms,
        maxRetryAfter: msMax,
      },
    })
    return fromFetch(reply)
  },
}

const byAxios: RetryingClient = {
  name: 'axios with axios-retry',
  retriesHalfReplies: true,
  async pay({ url, key, amount }, { ms, msMax }) {
    const client = axios.create({ responseType: 'arraybuffer' })
    axiosRetry(client, {
      retries: RETRIES,
      // An error with a success status is a reply whose body broke off.
      retryCondition: ({ response }) =>
        response === undefined ||
        response.status < 400 ||
        RETRIED_STATUSES.includes(response.status),
      retryDelay: (count, error) =>
        Math.min(axiosRetry.linearDelay(ms / count)(count, error), msMax),
    })
    const reply = await client.post<Buffer>(
      url,
      { amount },
      { headers: { 'idempotency-key': key } },
    )
    const replayed = reply.headers['idempotent-replayed'] as string | undefined
    return { status: reply.status, replayed, body: reply.data }
  },
}

const retryOptions = ({ ms, msMax }: Pause) => ({
  maxRetries: RETRIES,
  methods: ['POST'] as Dispatcher.HttpMethod[],
  statusCodes: RETRIED_STATUSES,
  minTimeout: ms,
  timeoutFactor: 1,
  maxTimeout: msMax,
})

function byUndici(name: string, dispatcherOf: (pause: Pause) => Dispatcher): RetryingClient {
  return {
    name,
    // undici requests the missing range, which only a GET of a file supports.
    retriesHalfReplies: false,
    async pay({ url, key, amount }, pause) {
      const dispatcher = dispatcherOf(pause)
      onTestFinished(() => dispatcher.destroy())
      const reply = await request(url, {
        dispatcher,
        method: 'POST',
        headers: { 'content-type': 'application/json', 'idempotency-key': key },
        body: JSON.stringify({ amount }),
      })
      const replayed = reply.headers['idempotent-replayed']?.toString()
      const body = Buffer.from(await reply.body.arrayBuffer())
      return { status: reply.statusCode, replayed, body }
    },
  }
}

/** The loop from the guide for client authors. */
const byHand: RetryingClient = {
  name: 'fetch in a loop',
  retriesHalfReplies: true,
  async pay({ url, key, amount }, { ms, msMax }) {
    for (let attempt = 0; ; attempt++) {
      const reply = await fetch(url, {
        method: 'POST',
        headers: { 'content-type': 'application/json', 'idempotency-key': `"${key}"` },
        body: JSON.stringify({ amount }),
      })
        .then(fromFetch)
        .catch(() => undefined)
      const isFinal = reply !== undefined && !RETRIED_STATUSES.includes(reply.status)
      if (isFinal) return reply
      if (attempt === RETRIES) throw new Error('no answer')
      const asked = reply?.retryAfter === undefined ? ms : Number(reply.retryAfter) * 1000
      await new Promise((resolve) => setTimeout(resolve, Math.min(asked, msMax)))
    }
  },
}

async function fromFetch(reply: Response): Promise<FinalAnswer & { retryAfter?: string }> {
  const { status, headers } = reply
  const retryAfter = headers.get('retry-after')
  return {
    status,
    replayed: headers.get('idempotent-replayed') ?? undefined,
    body: Buffer.from(await reply.arrayBuffer()),
    ...(retryAfter === null ? {} : { retryAfter }),
  }
}

export const CLIENTS: readonly RetryingClient[] = [
  byGot,
  byKy,
  byAxios,
  byUndici('undici with RetryAgent', (pause) => new RetryAgent(new Agent(), retryOptions(pause))),
  byUndici('undici with interceptors.retry', (pause) =>
    new Agent().compose(interceptors.retry(retryOptions(pause))),
  ),
  byHand,
]
