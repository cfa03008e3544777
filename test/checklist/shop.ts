/** A small shop behind HTTP. A token names the caller; the charges are outside effects. */
import express, { type Request, type Response } from 'express'
import { onTestFinished } from 'vitest'
import {
  idempotency,
  idempotencyOf,
  idempotencyStatus,
  type IdempotencyOptions,
} from '../../src/adapters/express/index.ts'
import { createEngine } from '../../src/core/engine/engine.ts'
import type { Engine, EngineOptions } from '../../src/core/engine/engine-contract.ts'
import type { EngineEvent } from '../../src/core/events.ts'
import type { Store } from '../../src/core/store/store.ts'
import { sqliteStore, type SqliteStore } from '../../src/stores/sqlite/index.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'
import { serve, type Reply, type Send } from '../adapters/run-express.ts'
import type { Provider } from '../durable/operations/provider.ts'
import { scratchFolder } from '../stores/scratch-folder.ts'

export interface PaymentRequest {
  readonly key?: string
  /** `tenant/user/session` */
  readonly token?: string
  readonly amountCents?: number
}

export interface ShopOptions {
  /** @default an embedded store on a new file */
  readonly store?: Store
  readonly engine?: Partial<EngineOptions>
  readonly guard?: Partial<IdempotencyOptions>
  /** Handler of `POST /payments`. @default charges, and replies with 201 */
  readonly handler?: (shop: Till, req: Request, res: Response) => unknown
}

/** The functions that a handler can use. */
export interface Till {
  /** Outside effects, which cannot be undone. */
  readonly charges: { readonly tenant: string; readonly amountCents: number }[]
  /** Charges, and replies with 201. Every reply is different. */
  readonly charge: (req: Request, res: Response) => void
}

export interface Shop {
  readonly engine: Engine
  readonly events: readonly EngineEvent[]
  readonly charges: Till['charges']
  readonly pay: (paying?: PaymentRequest) => Promise<Reply>
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
  // The guard is mounted for every method of this route.
  app.all('/payments/:id', guard, (req, res) => void res.json({ method: req.method }))
  app.get('/operations/:id', idempotencyStatus({ engine, tenant: tenantOf, statusUrl }))
  // Replies with the status only, and logs nothing.
  app.use((_error: unknown, _req: Request, res: Response, _next: unknown) => {
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

/** A handler that charges at a provider, which recognises the downstream key. */
export function chargeAt(provider: Provider): NonNullable<ShopOptions['handler']> {
  return async (_till, req, res) => {
    const downstreamKey = idempotencyOf(req).downstreamKey()
    res.status(201).json(await provider.charge({ amount: 500 }, downstreamKey))
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

/** The embedded default store on a new file, with a fake clock if one is given. */
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

/** A shop on a new file, whose clock a test moves. */
export async function openTimedShop({
  wrap = (store) => store,
  ...options
}: Omit<ShopOptions, 'store'> & { readonly wrap?: (store: Store) => Store } = {}) {
  const clock = new FakeClock()
  const store = wrap(openFile({ clock }).open())
  const shop = await openShop({ ...options, store, engine: { clock, ...options.engine } })
  return { ...shop, clock }
}
