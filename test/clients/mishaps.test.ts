import { describe, expect, it } from 'vitest'
import {
  SERVERS,
  servePayments,
  type ApiOptions,
  type PaymentsApi,
} from './payments-api.ts'
import { AT_ONCE, CLIENTS } from './retrying-clients.ts'

// Whatever befalls the first try, the client's own retries end with the first run's reply.

interface Mishap {
  readonly name: string
  readonly options?: ApiOptions
  /** Brings it about, for the next request. */
  arrange(api: PaymentsApi): void
  /** The statuses that left the server, where that is certain. */
  readonly statuses?: readonly number[]
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
    // The retry finds the first try still running; once it was told so, the work ends.
    name: 'the connection breaks while the work runs, and a retry is told 409',
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
  describe.each(MISHAPS)('$name', ({ options = {}, arrange, statuses }) => {
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
      if (statuses !== undefined) expect(api.statuses).toEqual(statuses)
    })
  })
})
