import express, { type RequestHandler } from 'express'
import type { Reconciler } from 'oncekey/durable'
import { z } from 'zod'
import { SIGNATURE_HEADER } from '../../provider/contract.ts'
import { verify } from '../../provider/signature.ts'
import type { Database } from '../database/database.ts'
import { sendProblem } from '../http/problems.ts'
import { providerEffect } from '../provider/provider-client.ts'

/** Accepts unknown types, because a provider may add new ones at any time. */
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

/** Keeps the raw body: the signature covers exactly these bytes. */
export const readRawBody: RequestHandler = express.raw({ type: () => true, limit: '64kb' })

/**
 * Receives an event of the provider. It may arrive twice, late, before the response of its effect,
 * or from an attacker.
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
        detail: 'It is signed, but it has no known event format.',
      })
    }

    const { rows } = await database.query(SEEN, [event.id])
    if (rows.length > 0) {
      res.json({ status: 'seen_before' })
      return
    }

    // First the verdict, then the note that the event was handled. If the process dies in between,
    // the provider sends the event again, and the verdict is known already. In the other order, an
    // event that was noted but not handled would be ignored permanently.
    const status = await resolveEvent(reconciler, event)
    await database.insertOnce(REMEMBER, [event.id, new Date().toISOString()])
    res.json({ status })
  }
}

function toEvent(body: Buffer): Event | undefined {
  try {
    return providerEvent.parse(JSON.parse(body.toString()))
  } catch {
    // The provider gets a 400 for any invalid body.
    return undefined
  }
}

const VERDICTS: ReadonlySet<string> = new Set(['effect.succeeded', 'effect.declined'])

/** The downstream key identifies the effect and its operation. */
async function resolveEvent(reconciler: Reconciler, { type, effect }: Event): Promise<string> {
  // A "received" event says nothing about the outcome.
  if (!VERDICTS.has(type)) return 'no_verdict'
  const target = { downstreamKey: effect.key }
  const outcome = await reconciler.resolve(target, { kind: 'done', result: effect })
  return outcome.kind
}
