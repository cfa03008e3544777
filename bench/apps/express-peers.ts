/** The same Express route behind each peer, mounted as in its documentation. */
import type { NextFunction, Request, RequestHandler, Response } from 'express'
import type { Places } from '../run/contract.ts'
import { loadPeer } from '../subjects/load-peer.ts'
import {
  openIdempotency,
  type NodeIdempotency,
  type NodeIdempotencyStore,
} from '../subjects/node-idempotency.ts'
import { openPowertools } from '../subjects/powertools.ts'
import { DAY_SECONDS, openManager, type SteadykeyStore } from '../subjects/steadykey.ts'
import type { Gate } from './app.ts'
import { paying, type Protection } from './express-app.ts'

/** Mounts steadykey after `express.json()`. It sends the reply first and records it afterwards. */
export async function steadykey(store: SteadykeyStore, places: Places): Promise<Protection> {
  const { createIdempotencyMiddleware } = await loadPeer<{
    createIdempotencyMiddleware: (
      manager: unknown,
      options: { ttlSeconds: number; namespace: string },
    ) => RequestHandler
  }>('steadykey/middleware')
  const opened = await openManager(store, places)
  const mount = () =>
    createIdempotencyMiddleware(opened.manager, { ttlSeconds: DAY_SECONDS, namespace: 'bench' })
  let middleware = mount()
  const { reset } = opened
  return {
    before: [(req, res, next) => void middleware(req, res, next)],
    ...(reset === undefined
      ? {}
      : {
          async reset() {
            await reset()
            middleware = mount()
          },
        }),
    close: opened.close,
  }
}

/**
 * The Express package of the peer is not in every registry, so this follows the flow of its README,
 * and behaves like that package: the reply is sent before it is recorded.
 */
export async function nodeIdempotency(
  store: NodeIdempotencyStore,
  places: Places,
): Promise<Protection> {
  const opened = await openIdempotency(store, places)
  const before: RequestHandler = async (req, res, next) => {
    await onceByCore(opened.idempotency, { req, res, next })
  }
  return { before: [before], reset: opened.reset, close: opened.close }
}

interface Handled {
  readonly req: Request
  readonly res: Response
  readonly next: NextFunction
}

async function onceByCore(
  idempotency: NodeIdempotency,
  { req, res, next }: Handled,
): Promise<void> {
  const { method, url: path, headers, body } = req
  const request = { method, path, headers, body: body as unknown }
  const known = await idempotency.onRequest(request)
  if (known !== undefined) {
    res.status(known.additional?.['status'] as number).type('json')
    res.send(known.body)
    return
  }
  const send = res.send.bind(res)
  res.send = (text: unknown) => {
    const reply = { body: text, additional: { status: res.statusCode } }
    void idempotency.onResponse(request, reply)
    return send(text)
  }
  next()
}

/** The package wraps functions, so the route calls the function. Records before it returns. */
export async function powertools(places: Places, gate: Gate): Promise<Protection> {
  const subject = await openPowertools(places, gate)
  const handler: RequestHandler = async (req, res) => {
    const reply = await subject.run(req.get('idempotency-key')!)
    res.status(201).json(reply)
  }
  return { before: [], handler, reset: subject.reset!, close: subject.close }
}

interface ExpressIdempotency {
  readonly idempotency: () => RequestHandler
  readonly getSharedIdempotencyService: () => { isHit(req: Request): boolean }
}

/**
 * Mounted as in its README, with its only built-in storage: an array in memory that it searches for
 * every key. Takes no lock between reading a key and taking it, and records after the reply.
 */
export async function expressIdempotency(gate: Gate): Promise<Protection> {
  const peer = await loadPeer<ExpressIdempotency & { default?: ExpressIdempotency }>(
    'express-idempotency',
  )
  const { idempotency, getSharedIdempotencyService } = peer.default ?? peer
  let middleware = idempotency()
  const pay = paying(gate)
  const handler: RequestHandler = (req, res, next) => {
    if (!getSharedIdempotencyService().isHit(req)) void pay(req, res, next)
  }
  return {
    before: [(req, res, next) => void middleware(req, res, next)],
    handler,
    reset: async () => void (middleware = idempotency()),
    close: async () => undefined,
  }
}
