/**
 * Proves when a request was first sent. A bearer token proves nothing about that: an attacker who
 * has captured a request also has its token, and can write any time into a header.
 */
import type { Request, RequestHandler } from 'express'
import { sign, verify } from '../../provider/signature.ts'
import { sendProblem } from './problems.ts'
import { callerOf } from './tokens.ts'

declare global {
  namespace Express {
    interface Request {
      /** Set by `requireSignedTime`. */
      firstSentAt?: Date
    }
  }
}

/** `t=<unix seconds of the first attempt>,v1=<hex HMAC-SHA256>`. Retries send the same value. */
export const REQUEST_SIGNATURE = 'Request-Signature'

export interface SignedRequest {
  readonly method: string
  /** With its query. */
  readonly path: string
  /** The header `Idempotency-Key`, as it is sent. */
  readonly key: string
  readonly body: string | Uint8Array
}

/** The value of the header, for clients. */
export function signRequest(request: SignedRequest, secret: string, firstSentAt: Date): string {
  return sign({ body: signedBytes(request), secret, now: firstSentAt.getTime() })
}

/** A body parser that refuses requests without a valid signature. The guard refuses old ones. */
export function requireSignedTime(parse: RequestHandler): RequestHandler {
  return (req, res, next) => {
    void parse(req, res, (error?: unknown) => {
      if (error !== undefined) return next(error)
      checkSignature(req, res, next)
    })
  }
}

const checkSignature: RequestHandler = (req, res, next) => {
  const verified = verify({
    body: signedBytes({
      method: req.method,
      path: req.originalUrl,
      key: req.get('Idempotency-Key') ?? '',
      body: rawBodyOf(req),
    }),
    header: req.get(REQUEST_SIGNATURE),
    secret: secretOf(req),
    now: Date.now(),
    // A signature is valid at any age here, because a retry that is late still gets its reply.
    toleranceMs: Number.POSITIVE_INFINITY,
  })
  if (verified.kind === 'valid') {
    req.firstSentAt = verified.signedAt
    return next()
  }
  sendProblem(res, {
    status: 401,
    code: 'invalid_signature',
    title: 'The signature is not valid',
    detail: `Sign the request in the header ${REQUEST_SIGNATURE}: ${verified.reason}.`,
  })
}

function secretOf(req: Request): string {
  const { signingSecret } = callerOf(req)
  if (signingSecret !== undefined) return signingSecret
  throw new Error('the settings must have a signing secret for each token')
}

/** Everything that decides about the effect of a request, so that nothing can be exchanged. */
function signedBytes({ method, path, key, body }: SignedRequest): Buffer {
  return Buffer.concat([Buffer.from(`${method} ${path}\n${key}\n`), Buffer.from(body)])
}

/** The bytes that the JSON parser has kept for the guard. */
function rawBodyOf(req: Request): Uint8Array {
  return 'rawBody' in req && req.rawBody instanceof Uint8Array ? req.rawBody : new Uint8Array()
}
