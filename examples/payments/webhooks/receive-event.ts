import express, { type RequestHandler } from 'express'
import type { Reconciler } from 'oncekey/durable'
import { z } from 'zod'
import { SIGNATURE_HEADER } from '../../provider/contract.ts'
import { verify } from '../../provider/signature.ts'
import type { Database } from '../database/database.ts'
import { sendProblem } from '../problems.ts'
import { providerEffect } from '../provider-client.ts'

/** Of a kind that is not known here, too: a provider may invent new ones at any time. */
const providerEvent = z.object({
  id: z.string().min(1).max(64),
  type: z.string(),
  effect: providerEffect,
})

type Event = z.infer<typeof providerEvent>

export interface WebhookParts {
  readonly database: Database
  readonly reconciler: Reconciler
  readonly webhookSecret: string
}

const SEEN = 'SELECT event_id FROM provider_event WHERE event_id = ?'
const REMEMBER = 'INSERT INTO provider_event (event_id, created_at) VALUES (?, ?)'

/** The body as it travelled: only of these bytes can the signature be checked. */
export const readRawBody: RequestHandler = express.raw({ type: () => true, limit: '64kb' })

/**
 * What the provider says by itself. It may come twice, late, before the response that it is about,
 * or from somebody else.
 */
export function receiveEvent({
  database,
  reconciler,
  webhookSecret,
}: WebhookParts): RequestHandler {
  return async (req, res) => {
    const body = Buffer.isBuffer(req.body) ? req.body : Buffer.alloc(0)
    const header = req.get(SIGNATURE_HEADER)
    const signature = verify({ body, header, secret: webhookSecret, now: Date.now() })
    if (signature.kind === 'invalid') {
      return sendProblem(res, {
        status: 401,
        code: 'invalid_signature',
        title: 'The signature is not valid',
        detail: `The signature of this event is not accepted: ${signature.reason}.`,
      })
    }

    const event = toEvent(body)
    if (event === undefined) {
      return sendProblem(res, {
        status: 400,
        code: 'unreadable_event',
        title: 'The event cannot be read',
        detail: 'It is signed, but it is no event that this service knows the form of.',
      })
    }

    const { rows } = await database.query(SEEN, [event.id])
    if (rows.length > 0) {
      res.json({ status: 'seen_before' })
      return
    }

    // First the verdict, then the note that the event was seen. If the process dies in between, the
    // provider sends it again, and the verdict is known already. The other way round, an event that
    // was noted and never acted upon would be ignored for ever.
    const status = await conclude(reconciler, event)
    await database.insertOnce(REMEMBER, [event.id, new Date().toISOString()])
    res.json({ status })
  }
}

function toEvent(body: Buffer): Event | undefined {
  try {
    return providerEvent.parse(JSON.parse(body.toString()))
  } catch {
    // Whatever is wrong with it, the provider is told so by a 400.
    return undefined
  }
}

const VERDICTS: ReadonlySet<string> = new Set(['effect.succeeded', 'effect.declined'])

/** The downstream key says which effect of which operation it is about. */
async function conclude(reconciler: Reconciler, { type, effect }: Event): Promise<string> {
  // That a request was received says nothing about what became of it.
  if (!VERDICTS.has(type)) return 'no_verdict'
  const target = { downstreamKey: effect.key }
  const outcome = await reconciler.resolve(target, { kind: 'done', result: effect })
  return outcome.kind
}
