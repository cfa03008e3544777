import http from 'node:http'
import { Stripe } from 'stripe'
import { describe, expect, it, onTestFinished } from 'vitest'
import { gate } from '../adapters/run-express.ts'
import {
  replyWithPayment,
  SERVERS,
  servePayments,
  type ApiSetup,
  type PaymentsApi,
} from './payments-api.ts'

// The official Stripe SDK against an API with the Stripe profile.

/** The SDK has no option for its pauses, which are at least half a second. */
class StripeWithoutPauses extends Stripe {
  override getInitialNetworkRetryDelay(): number {
    return 0.005
  }

  override getMaxNetworkRetryDelay(): number {
    return 0.005
  }
}

interface Scene extends ApiSetup {
  readonly config?: Stripe.StripeConfig
}

async function setup({ config, ...rest }: Scene = {}) {
  const options = { profile: 'stripe', ...rest.options } as const
  const api = await servePayments({ ...rest, options })
  const httpAgent = new http.Agent({ keepAlive: true })
  onTestFinished(() => httpAgent.destroy())
  const stripe = new StripeWithoutPauses('sk_test_of_nobody', {
    host: '127.0.0.1',
    port: api.line.port,
    protocol: 'http',
    httpAgent,
    telemetry: false,
    maxNetworkRetries: 20,
    ...config,
  })
  return { ...api, stripe }
}

const PARAMS = { amount: 2000, currency: 'eur' } as const

/** The error of the SDK. */
async function errorOf(call: Promise<unknown>): Promise<Stripe.errors.StripeError> {
  const error: unknown = await call.then(
    () => new Error('expected the call to fail'),
    (raised: unknown) => raised,
  )
  expect(error).toBeInstanceOf(Stripe.errors.StripeError)
  return error as Stripe.errors.StripeError
}

/** Asserts that every request had the same key, which the SDK had generated. */
function expectOwnKey({ keys }: Pick<PaymentsApi, 'keys'>, requests: number): void {
  expect(keys).toHaveLength(requests)
  expect(new Set(keys).size).toBe(1)
  expect(keys[0]).toMatch(/^stripe-node-retry-[0-9a-f-]{36}$/)
}

describe.each(SERVERS)('the Stripe SDK on %s', (_name, mount) => {
  it('creates a payment intent under a key that the SDK generates', async () => {
    const { stripe, runs, ...api } = await setup({ mount })
    const intent = await stripe.paymentIntents.create(PARAMS)
    expect(intent).toMatchObject({ object: 'payment_intent', run: 1 })
    expect(intent.lastResponse.statusCode).toBe(201)
    expect(intent.lastResponse.headers).not.toHaveProperty('idempotent-replayed')
    expectOwnKey(api, 1)
    expect(runs()).toBe(1)
  })

  it('gets the intent of the only run when the reply was lost', async () => {
    const { stripe, line, runs, ...api } = await setup({ mount })
    void line.once('answer lost', 'POST')
    const intent = await stripe.paymentIntents.create(PARAMS)
    expect(intent).toMatchObject({ object: 'payment_intent', run: 1 })
    expect(intent.lastResponse.headers).toMatchObject({ 'idempotent-replayed': 'true' })
    expectOwnKey(api, 2)
    expect(runs()).toBe(1)
  })

  it('gets the intent of the only run when the request was lost', async () => {
    const { stripe, line, runs, ...api } = await setup({ mount })
    void line.once('request lost', 'POST')
    const intent = await stripe.paymentIntents.create(PARAMS)
    expect(intent).toMatchObject({ run: 1 })
    expect(intent.lastResponse.headers).not.toHaveProperty('idempotent-replayed')
    expectOwnKey(api, 1)
    expect(runs()).toBe(1)
  })

  it('retries once under the same key even with retries turned off', async () => {
    const { stripe, line, runs, ...api } = await setup({ mount, config: { maxNetworkRetries: 0 } })
    void line.once('answer lost', 'POST')
    expect(await stripe.paymentIntents.create(PARAMS)).toMatchObject({ run: 1 })
    expectOwnKey(api, 2)
    expect(runs()).toBe(1)
  })

  // The connection breaks while the work runs; the work continues until a retry gets 409.
  it('retries after a 409 until the first request has its reply', async () => {
    const { stripe, line, holdNext, left, runs, statuses } = await setup({ mount })
    holdNext(() => {
      line.cut()
      return left(409)
    })
    const intent = await stripe.paymentIntents.create(PARAMS)
    expect(intent).toMatchObject({ run: 1 })
    expect(intent.lastResponse.headers).toMatchObject({ 'idempotent-replayed': 'true' })
    expect(statuses).toContain(409)
    expect(runs()).toBe(1)
  })

  it('raises StripeAPIError on 409 when it has no retries left', async () => {
    const { stripe, holdNext, runs } = await setup({ mount, config: { maxNetworkRetries: 0 } })
    const [entered, opened] = [gate(), gate()]
    holdNext(() => {
      entered.open()
      return opened.passed
    })
    const options = { idempotencyKey: 'order-1' }
    const first = stripe.paymentIntents.create(PARAMS, options)
    await entered.passed
    const error = await errorOf(stripe.paymentIntents.create(PARAMS, options))
    expect(error).toBeInstanceOf(Stripe.errors.StripeAPIError)
    expect(error).toMatchObject({
      statusCode: 409,
      rawType: 'idempotency_error',
      code: 'idempotency_key_in_progress',
    })
    expect(Number(error.headers?.['retry-after'])).toBeGreaterThan(0)
    opened.open()
    expect(await first).toMatchObject({ run: 1 })
    expect(runs()).toBe(1)
  })

  it('continues when the store is back', async () => {
    const { stripe, broken, left, runs, statuses } = await setup({ mount })
    broken.add('claim')
    void left(503).then(() => broken.delete('claim'))
    expect(await stripe.paymentIntents.create(PARAMS)).toMatchObject({ run: 1 })
    expect(statuses.at(0)).toBe(503)
    expect(runs()).toBe(1)
  })

  it('shows that a reply is a replay', async () => {
    const { stripe, runs } = await setup({ mount })
    const options = { idempotencyKey: 'order-1' }
    const first = await stripe.paymentIntents.create(PARAMS, options)
    const again = await stripe.paymentIntents.create(PARAMS, options)
    expect(again).toEqual(first)
    expect(again.lastResponse.headers['idempotent-replayed']).toBe('true')
    expect(again.lastResponse.headers).toHaveProperty('idempotency-expires')
    expect(runs()).toBe(1)
  })

  it('returns the key of a reply when the API repeats it, as Stripe does', async () => {
    const { stripe } = await setup({
      mount,
      options: { storeHeaders: ['idempotency-key'] },
      work: (res, run) => {
        res.setHeader('Idempotency-Key', res.req.headers['idempotency-key']!)
        return replyWithPayment(res, run)
      },
    })
    const options = { idempotencyKey: 'order-1' }
    for (const replayed of [undefined, 'true']) {
      const { lastResponse } = await stripe.paymentIntents.create(PARAMS, options)
      expect(lastResponse.idempotencyKey).toBe('order-1')
      expect(lastResponse.headers['idempotent-replayed']).toBe(replayed)
    }
  })

  it('raises StripeIdempotencyError for other params under the same key', async () => {
    const { stripe, runs, statuses } = await setup({ mount })
    const options = { idempotencyKey: 'order-1' }
    await stripe.paymentIntents.create(PARAMS, options)
    const other = stripe.paymentIntents.create({ ...PARAMS, amount: 9000 }, options)
    const error = await errorOf(other)
    expect(error).toBeInstanceOf(Stripe.errors.StripeIdempotencyError)
    expect(error).toMatchObject({
      statusCode: 400,
      rawType: 'idempotency_error',
      code: 'idempotency_key_reused_with_different_payload',
    })
    // The error is final: no retry, and the reply to the first request is still stored.
    expect(statuses).toEqual([201, 400])
    expect(await stripe.paymentIntents.create(PARAMS, options)).toMatchObject({ run: 1 })
    expect(runs()).toBe(1)
  })

  it.each([
    ['an empty key', '', 'idempotency_key_malformed'],
    ['a key of 256 characters', 'k'.repeat(256), 'idempotency_key_malformed'],
    ['two keys in one', 'a,b', 'idempotency_key_malformed'],
  ])('raises StripeInvalidRequestError for %s', async (_what, key, code) => {
    const { stripe, runs } = await setup({ mount })
    // The SDK treats `idempotencyKey: ''` as absent and generates a key.
    const post = stripe.rawRequest('POST', '/v1/payment_intents', PARAMS, {
      additionalHeaders: { 'Idempotency-Key': key },
    })
    const error = await errorOf(post)
    expect(error).toBeInstanceOf(Stripe.errors.StripeInvalidRequestError)
    expect(error).toMatchObject({ statusCode: 400, rawType: 'invalid_request_error', code })
    expect(runs()).toBe(0)
  })

  it('raises StripeInvalidRequestError when a proxy removed the key', async () => {
    const { stripe, runs } = await setup({ mount, options: { keyHeader: 'x-other-key' } })
    const error = await errorOf(stripe.paymentIntents.create(PARAMS))
    expect(error).toBeInstanceOf(Stripe.errors.StripeInvalidRequestError)
    expect(error).toMatchObject({ statusCode: 400, code: 'idempotency_key_missing' })
    expect(error.message).toContain('x-other-key')
    expect(runs()).toBe(0)
  })
})

describe('a 500 that is stored, as Stripe stores them', () => {
  const failing: Scene = {
    work: (res) => {
      res.statusCode = 500
      res.setHeader('Content-Type', 'application/json')
      res.end('{"error":{"type":"api_error","message":"It broke."}}')
    },
  }

  it('a stored 500 is retried until the SDK gives up', async () => {
    const { stripe, runs, statuses } = await setup({ ...failing, config: { maxNetworkRetries: 3 } })
    const error = await errorOf(stripe.paymentIntents.create(PARAMS))
    expect(error).toBeInstanceOf(Stripe.errors.StripeAPIError)
    expect(error).toMatchObject({ statusCode: 500, message: 'It broke.' })
    expect(error.headers?.['idempotent-replayed']).toBe('true')
    expect(statuses).toEqual([500, 500, 500, 500])
    expect(runs()).toBe(1)
  })

  it('a stored 500 is not retried when the API sends Stripe-Should-Retry: false', async () => {
    const { stripe, runs, statuses } = await setup({
      options: { storeHeaders: ['stripe-should-retry'] },
      work: (res, run) => {
        res.setHeader('Stripe-Should-Retry', 'false')
        return failing.work!(res, run)
      },
    })
    const error = await errorOf(stripe.paymentIntents.create(PARAMS))
    expect(error).toMatchObject({ statusCode: 500, message: 'It broke.' })
    expect(statuses).toEqual([500])
    expect(runs()).toBe(1)
  })

  it('a stored 500 is not replayed under a new key', async () => {
    const { stripe, runs } = await setup({
      config: { maxNetworkRetries: 0 },
      work: (res, run) => {
        if (run === 1) return failing.work!(res, run)
        res.setHeader('Content-Type', 'application/json')
        return res.end(JSON.stringify({ object: 'payment_intent', run }))
      },
    })
    await errorOf(stripe.paymentIntents.create(PARAMS, { idempotencyKey: 'try-1' }))
    await errorOf(stripe.paymentIntents.create(PARAMS, { idempotencyKey: 'try-1' }))
    expect(runs()).toBe(1)
    const intent = await stripe.paymentIntents.create(PARAMS, { idempotencyKey: 'try-2' })
    expect(intent).toMatchObject({ run: 2 })
  })
})
