/**
 * A flow with two outgoing calls, of which one forgets its key: the WooCommerce-Stripe case, where
 * the calls to /charges had a key and those to /payment_intents had none.
 */
import { describe, expect, it, onTestFinished } from 'vitest'
import { createServer, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import { InvalidOptionsError } from '../../../../src/core/errors.ts'
import { defineOperation, keyedFetch } from '../../../../src/durable/index.ts'
import type { EffectCall } from '../../../../src/durable/operations/operation-contract.ts'
import { durableFixture } from '../durable-fixture.ts'

interface Renewal {
  readonly amount: number
}

interface Made {
  readonly id: string
}

type Send = (call: EffectCall<Renewal>) => Promise<Made>

const MINUTE_MS = 60_000

/** A provider that makes one object for each key, and one for each request without a key. */
async function startProvider() {
  const made: { readonly path: string; readonly key: string | undefined; readonly id: string }[] =
    []
  let answersToLose = 0
  const keyOf = ({ headers }: IncomingMessage) => headers['idempotency-key']?.toString()
  const server = createServer((req, res) => {
    const [path, key] = [req.url!, keyOf(req)]
    const known = made.find((one) => key !== undefined && one.key === key && one.path === path)
    const { id } = known ?? { id: `${path.slice(1)}-${made.length + 1}` }
    if (known === undefined) made.push({ path, key, id })
    if (path === '/payment_intents' && answersToLose-- > 0) return void res.destroy()
    res.writeHead(201, { 'Content-Type': 'application/json' }).end(JSON.stringify({ id }))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  onTestFinished(() => {
    server.close()
    server.closeAllConnections()
  })
  const { port } = server.address() as AddressInfo
  return {
    url: `http://127.0.0.1:${port}`,
    made: (path: string) => made.filter((one) => one.path === path),
    /** Makes the next payment intent, and cuts the connection instead of an answer. */
    loseNextIntent: () => void answersToLose++,
  }
}

const toMade = async (response: Response): Promise<Made> => (await response.json()) as Made

/** A renewal of a subscription: a charge with its key, then a payment intent. */
async function setup(intent: (url: string) => Send, rest: { readonly keyless?: boolean } = {}) {
  const provider = await startProvider()
  const { run, events } = durableFixture()
  const { url } = provider
  const charge: Send = async (call) =>
    toMade(await keyedFetch(call)(`${url}/charges`, { method: 'POST' }))
  const renew = defineOperation({
    name: 'subscriptions.renew',
    effects: {
      charge: { send: charge },
      // The provider recognises keys for a minute, so a lost answer is followed by a second send.
      intent: { send: intent(url), resendWithinMs: MINUTE_MS, ...rest },
    },
    async run(op, input: Renewal) {
      const { id: chargeId } = await op.external('charge', input)
      const { id: intentId } = await op.external('intent', input)
      return op.finish('renewed', () => ({ status: 201, body: { chargeId, intentId } }))
    },
  })
  const reports = () =>
    events.flatMap((event) =>
      event.kind === 'effect_without_key' ? [{ name: event.name, phase: event.phase }] : [],
    )
  return { provider, reports, renew: () => run(renew, { amount: 900 }) }
}

/** The bug: this call was added later, and its author forgot the key. */
const withoutKey =
  (url: string): Send =>
  async () =>
    toMade(await fetch(`${url}/payment_intents`, { method: 'POST' }))

const withKey =
  (url: string): Send =>
  async (call) =>
    toMade(await keyedFetch(call)(`${url}/payment_intents`, { method: 'POST' }))

describe('a flow whose second call forgets its key (WooCommerce-Stripe)', () => {
  it('reports the forgotten key on the first run, before any answer is lost', async () => {
    const { renew, reports, provider } = await setup(withoutKey)
    expect(await renew()).toMatchObject({ kind: 'ran', status: 201 })
    expect(reports()).toEqual([{ name: 'subscriptions.renew', phase: 'intent' }])
    expect(provider.made('/charges')).toHaveLength(1)
  })

  it('makes a second payment intent after a lost answer, and still one charge', async () => {
    const { renew, provider } = await setup(withoutKey)
    provider.loseNextIntent()
    await expect(renew()).rejects.toThrow('fetch failed')
    expect(await renew()).toMatchObject({ kind: 'ran', status: 201 })
    expect(provider.made('/charges')).toHaveLength(1)
    expect(provider.made('/payment_intents')).toHaveLength(2)
  })

  it('makes one payment intent after a lost answer when keyedFetch sends the key', async () => {
    const { renew, reports, provider } = await setup(withKey)
    provider.loseNextIntent()
    await expect(renew()).rejects.toThrow('fetch failed')
    const renewed = await renew()
    const [intent] = provider.made('/payment_intents')
    const [charge] = provider.made('/charges')
    expect(renewed).toMatchObject({ body: { chargeId: charge!.id, intentId: intent!.id } })
    expect(provider.made('/payment_intents')).toHaveLength(1)
    expect(intent!.key).not.toBe(charge!.key)
    expect(reports()).toEqual([])
  })

  it('does not report an effect that is declared as keyless', async () => {
    const { renew, reports } = await setup(withoutKey, { keyless: true })
    expect(await renew()).toMatchObject({ status: 201 })
    expect(reports()).toEqual([])
  })
})

describe('keyedFetch', () => {
  /** A `fetch` that keeps its requests, and answers each with 200. */
  function recording() {
    const requests: Request[] = []
    const send: typeof fetch = async (input) => {
      requests.push(input as Request)
      return new Response()
    }
    return { requests, fetch: send }
  }
  const CALL = { downstreamKey: 'key-1' }
  const URL_A = 'https://psp.example/charges?secret=1'

  it('sends the key in the given header, and everything else unchanged', async () => {
    const { requests, fetch } = recording()
    const headers = { 'Content-Type': 'text/plain' }
    const init = { method: 'POST', body: 'amount=1', headers }
    await keyedFetch({ ...CALL }, { fetch })(URL_A, init)
    await keyedFetch({ ...CALL }, { fetch, header: 'X-Request-Id' })(new Request(URL_A, init))
    const sent = requests.map(async (request) => {
      const { method, url } = request
      return [method, url, await request.text(), Object.fromEntries(request.headers)]
    })
    expect(await Promise.all(sent)).toEqual([
      ['POST', URL_A, 'amount=1', { 'content-type': 'text/plain', 'idempotency-key': 'key-1' }],
      ['POST', URL_A, 'amount=1', { 'content-type': 'text/plain', 'x-request-id': 'key-1' }],
    ])
  })

  it('sends a request again under its key, and refuses a second request under it', async () => {
    const { requests, fetch } = recording()
    const send = keyedFetch({ ...CALL }, { fetch })
    await send(URL_A, { method: 'POST' })
    await send(URL_A, { method: 'POST' })
    const refused = [
      send(URL_A, { method: 'PUT' }),
      send('https://psp.example/intents', { method: 'POST' }),
    ]
    for (const one of refused) {
      await expect(one).rejects.toThrow(/declare another effect for the second request/)
      await expect(one).rejects.not.toThrow(/secret=1/)
    }
    expect(requests).toHaveLength(2)
  })

  it('stops with the signal of the effect, and with that of the request', async () => {
    const { requests, fetch } = recording()
    const [ofEffect, ofRequest] = [new AbortController(), new AbortController()]
    const send = keyedFetch({ ...CALL, signal: ofEffect.signal }, { fetch })
    await send(URL_A, { signal: ofRequest.signal })
    await send(URL_A)
    const aborted = () => requests.map(({ signal }) => signal.aborted)
    expect(aborted()).toEqual([false, false])
    ofRequest.abort()
    expect(aborted()).toEqual([true, false])
    ofEffect.abort()
    expect(aborted()).toEqual([true, true])
  })

  it('refuses a second request of one effect, also through another keyedFetch', async () => {
    const { requests, fetch } = recording()
    const call = { ...CALL }
    await keyedFetch(call, { fetch })(URL_A)
    const second = keyedFetch(call, { fetch })(`${URL_A}/other`)
    await expect(second).rejects.toThrow(/declare another effect for the second request/)
    expect(requests).toHaveLength(1)
  })

  it('refuses a request that has another key, and a call without one', async () => {
    const { requests, fetch } = recording()
    const headers = { 'Idempotency-Key': 'other' }
    const given = keyedFetch({ ...CALL }, { fetch })(URL_A, { headers })
    await expect(given).rejects.toThrow(/already has a header Idempotency-Key with another value/)
    const same = { 'Idempotency-Key': CALL.downstreamKey }
    await keyedFetch({ ...CALL }, { fetch })(URL_A, { headers: same })
    expect(requests).toHaveLength(1)
    expect(() => keyedFetch({ downstreamKey: '' })).toThrow(InvalidOptionsError)
    expect(() => keyedFetch({ ...CALL }, { headers: {} } as never)).toThrow(/no option "headers"/)
  })
})
