/** A small shop behind HTTP: who asks is in a token, and what it charges is outside. */
import express, { type Request, type Response } from 'express'
import { onTestFinished } from 'vitest'
import {
  idempotency,
  idempotencyErrors,
  idempotencyStatus,
  type ExpressOptions,
} from '../../src/adapters/express.ts'
import { createEngine, type Engine, type EngineOptions } from '../../src/core/engine.ts'
import type { EngineEvent } from '../../src/core/events.ts'
import type { Store } from '../../src/core/store.ts'
import { sqliteStore, type SqliteStore } from '../../src/stores/sqlite/index.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'
import { serve, type Reply, type Send } from '../adapters/run-express.ts'
import { scratchFolder } from '../stores/scratch-folder.ts'

export interface Paying {
  readonly key?: string
  /** `tenant/user/session` */
  readonly token?: string
  readonly amountCents?: number
}

export interface ShopOptions {
  /** @default the embedded one, on a file of the test's own */
  readonly store?: Store
  readonly engine?: Partial<EngineOptions>
  readonly guard?: Partial<ExpressOptions>
  /** What `POST /payments` does. @default charges, and says so */
  readonly handler?: (shop: Till, req: Request, res: Response) => unknown
}

/** What a handler has at hand. */
export interface Till {
  /** The world outside: nothing takes back what it was told. */
  readonly charges: { readonly tenant: string; readonly amountCents: number }[]
  /** Charges, and replies 201. No two replies are the same. */
  readonly charge: (req: Request, res: Response) => void
}

export interface Shop {
  readonly engine: Engine
  readonly events: readonly EngineEvent[]
  readonly charges: Till['charges']
  readonly pay: (paying?: Paying) => Promise<Reply>
  readonly send: (request: Send) => Promise<Reply>
}

export const TOKEN = 'acme/ada/1'

const partOf = (req: Request, part: number): string =>
  /^Bearer (.+)$/.exec(req.headers.authorization ?? '')?.[1]?.split('/')[part] ?? ''
export const tenantOf = (req: Request): string => partOf(req, 0)
export const userOf = (req: Request): string => partOf(req, 1)

export const statusUrl = (recordId: string): string => `/operations/${recordId}`

export async function openShop({
  store = openFile().open(),
  handler,
  ...options
}: ShopOptions = {}): Promise<Shop> {
  const events: EngineEvent[] = []
  const onEvent = (event: EngineEvent) => void events.push(event)
  const upkeep = { sweepEveryMs: 0, reapEveryMs: 0 }
  const engine = createEngine({ store, onEvent, ...upkeep, ...options.engine })
  const till = openTill()
  const guard = idempotency({ engine, tenant: tenantOf, statusUrl, ...options.guard })
  const app = express()
  const pay = handler ?? ((_till, req, res) => till.charge(req, res))
  app.post('/payments', guard, express.json(), (req, res) => pay(till, req, res))
  // With the guard in their way, as on a route that takes every method.
  app.all('/payments/:id', guard, (req, res) => void res.json({ method: req.method }))
  app.get('/operations/:id', idempotencyStatus({ engine, tenant: tenantOf, statusUrl }))
  // Says no more than it must, and nothing on the console.
  app.use(idempotencyErrors(), (_error: unknown, _req: Request, res: Response, _next: unknown) => {
    res.status(500).json({ error: 'internal' })
  })
  const { send } = await serve(app)
  onTestFinished(async () => void (await engine.close({ graceMs: 0 })))
  return {
    engine,
    events,
    charges: till.charges,
    send,
    pay: ({ key, token = TOKEN, amountCents = 500 } = {}) =>
      send({
        path: '/payments',
        ...(key === undefined ? {} : { key }),
        headers: { authorization: `Bearer ${token}` },
        json: { amountCents },
      }),
  }
}

function openTill(): Till {
  const charges: Till['charges'] = []
  return {
    charges,
    charge(req, res) {
      const { amountCents } = req.body as { amountCents: number }
      charges.push({ tenant: tenantOf(req), amountCents })
      const paymentId = crypto.randomUUID()
      res.status(201).location(`/payments/${paymentId}`).json({ paymentId, amountCents })
    },
  }
}

/** The embedded default, on a file of the test's own; with time that stands still if asked for. */
export function openFile({ clock }: { readonly clock?: FakeClock } = {}) {
  const folder = scratchFolder()
  onTestFinished(folder.remove)
  const path = folder.file('keys.db')
  const open = (by: FakeClock | undefined = clock): SqliteStore => {
    const store = sqliteStore({ path, ...(by === undefined ? {} : { clock: by }) })
    onTestFinished(() => store.close())
    return store
  }
  return { path, open }
}

/** A shop on a file of its own, whose time a test moves. */
export async function openTimedShop({
  wrap = (store) => store,
  ...options
}: Omit<ShopOptions, 'store'> & { readonly wrap?: (store: Store) => Store } = {}) {
  const clock = new FakeClock()
  const store = wrap(openFile({ clock }).open())
  const shop = await openShop({ ...options, store, engine: { clock, ...options.engine } })
  return { ...shop, clock }
}
