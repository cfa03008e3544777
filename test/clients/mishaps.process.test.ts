import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { SERVERS, servePayments, type ApiOptions, type PaymentsApi } from './payments-api.ts'
import { AT_ONCE, CLIENTS, type Pause } from './retrying-clients.ts'

// After any fault of the first try, the retries of the client end with the reply of the first run.

interface Mishap {
  readonly name: string
  readonly options?: ApiOptions
  /** Causes the fault for the next request. */
  arrange(api: PaymentsApi): void
  /** The statuses that the server sent, where that is certain. */
  readonly statuses?: readonly number[]
  /** A status that no client got. */
  readonly never?: number
}

const MISHAPS: readonly Mishap[] = [
  {
    name: 'the connection breaks before the server has read the request',
    arrange: ({ line }) => void line.once('request lost', 'POST'),
    statuses: [201],
  },
  {
    name: 'the connection breaks after the work ran, before the reply',
    arrange: ({ line }) => void line.once('answer lost', 'POST'),
    statuses: [201, 201],
  },
  {
    // The retry finds the first try still running; after its 409 the work ends.
    name: 'the connection breaks while the work runs, and a retry gets 409',
    arrange: ({ holdNext, line, left }) =>
      holdNext(() => {
        line.cut()
        return left(409)
      }),
  },
  {
    name: 'the connection breaks while the work runs, and the retry waits for its reply',
    options: { whileInProgress: { waitMs: 10_000 } },
    arrange: ({ holdNext, line, arrived }) =>
      holdNext(() => {
        line.cut()
        return arrived(2)
      }),
    never: 409,
  },
  {
    name: 'the store cannot be reached at first',
    arrange: ({ broken, left }) => {
      broken.add('claim')
      void left(503).then(() => broken.delete('claim'))
    },
  },
  {
    name: 'the store fails after the work ran',
    options: { settleTimeoutMs: 1 },
    arrange: ({ broken, heard }) => {
      broken.add('settle')
      void heard('settle_late').then(() => broken.delete('settle'))
    },
  },
]

describe.each(SERVERS)('%s:', (_name, mount) => {
  describe.each(MISHAPS)('$name', ({ options = {}, arrange, statuses, never }) => {
    it.each(CLIENTS)('$name gets the reply of the only run', async ({ pay }) => {
      const bodies: string[] = []
      const api = await servePayments({
        mount,
        options,
        work: (res, run) => {
          bodies.push(`{"run": ${run},  "id":"${Math.random()}"}`)
          res.statusCode = 201
          res.end(bodies.at(-1))
        },
      })
      arrange(api)
      const { status, body } = await pay({ url: api.url, key: 'order-1', amount: 100 }, AT_ONCE)
      expect([status, body.toString()]).toEqual([201, bodies[0]])
      expect(api.runs()).toBe(1)
      expect(new Set(api.keys.map((key) => key?.replaceAll('"', '')))).toEqual(new Set(['order-1']))
      expect(api.statuses).not.toContain(never)
      if (statuses !== undefined) expect(api.statuses).toEqual(statuses)
    })
  })
})

describe.each(CLIENTS)('$name', ({ pay, retriesHalfReplies }) => {
  it('the client gets the whole reply when the first reply broke off in its body', async () => {
    const api = await servePayments()
    const order = { url: api.url, key: 'order-1', amount: 100 }
    void api.line.once('answer cut short', 'POST')
    const first = await pay(order, AT_ONCE).catch(() => undefined)
    expect(first !== undefined).toBe(retriesHalfReplies)
    const { status, replayed, body } = first ?? (await pay(order, AT_ONCE))
    expect([status, replayed, JSON.parse(body.toString())]).toEqual([
      201,
      'true',
      { id: expect.any(String), object: 'payment_intent', run: 1 },
    ])
    expect(api.runs()).toBe(1)
  })

  it('the client waits as long as Retry-After asks, unless configured otherwise', async () => {
    const pauses = skipPauses()
    for (const pause of [AT_ONCE, PATIENT]) {
      const api = await servePayments()
      api.broken.add('claim')
      void api.left(503).then(() => api.broken.delete('claim'))
      const { status } = await pay({ url: api.url, key: 'order-1', amount: 100 }, pause)
      expect([status, api.statuses]).toEqual([201, [503, 201]])
      expect(pauses).toEqual(pause === AT_ONCE ? [] : [1000])
    }
  })

  it('the client does not repeat a request that is refused permanently', async () => {
    const api = await servePayments()
    const order = { url: api.url, key: 'order-1', amount: 100 }
    await pay(order, AT_ONCE)
    const refused = await pay({ ...order, amount: 200 }, AT_ONCE).catch((error: unknown) => error)
    if (!(refused instanceof Error)) expect(refused).toMatchObject({ status: 422 })
    expect(api.statuses).toEqual([201, 422])
    expect(api.runs()).toBe(1)
  })
})

const PATIENT: Pause = { ms: 5, msMax: 60_000 }

/** Records pauses of about a second and skips them. No other timer of these tests is that long. */
function skipPauses(): number[] {
  const pauses: number[] = []
  const real = globalThis.setTimeout
  const hurried = (callback: (...args: unknown[]) => void, ms = 0, ...args: unknown[]) => {
    const isPause = ms >= 1000 && ms < 1500
    if (isPause) pauses.push(ms)
    return real(callback, isPause ? 0 : ms, ...args)
  }
  const spy = vi.spyOn(globalThis, 'setTimeout')
  spy.mockImplementation(hurried as typeof setTimeout)
  onTestFinished(() => spy.mockRestore())
  return pauses
}
