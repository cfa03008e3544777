import type { IncomingMessage } from 'node:http'
import type { EffectKind } from './contract.ts'
import type { KeyedRequest } from './ledger.ts'

export const BODY_BYTES_MAX = 1024 * 1024

const KEY_LENGTH_MAX = 255
const TEXT_LENGTH_MAX = 200
const FIELDS = ['amountCents', 'currency', 'reference', 'account', 'of']
/** The kind of effect that another kind refers to. */
const TAKES_FROM: Readonly<Partial<Record<EffectKind, string>>> = {
  refund: 'charge',
  capture: 'hold',
}

export type ReadBody =
  | { readonly kind: 'read'; readonly value: unknown }
  | { readonly kind: 'malformed' | 'too_large' | 'cut' }

export type CheckedRequest =
  | { readonly kind: 'valid'; readonly request: KeyedRequest }
  | { readonly kind: 'invalid'; readonly message: string }

/** Reads the JSON of a request. A body that is too large is not buffered. */
export async function readBody(req: IncomingMessage): Promise<ReadBody> {
  if (Number(req.headers['content-length'] ?? 0) > BODY_BYTES_MAX) return { kind: 'too_large' }
  const chunks: Buffer[] = []
  let bytes = 0
  const end = await new Promise<'end' | 'too_large' | 'cut'>((resolve) => {
    req.on('data', (chunk: Buffer) => {
      bytes += chunk.length
      if (bytes > BODY_BYTES_MAX) resolve('too_large')
      else chunks.push(chunk)
    })
    req.once('end', () => resolve('end'))
    req.once('error', () => resolve('cut'))
    req.once('close', () => resolve('cut'))
  })
  return end === 'end' ? parse(Buffer.concat(chunks)) : { kind: end }
}

export function checkRequest(
  kind: EffectKind,
  key: string | string[] | undefined,
  body: unknown,
): CheckedRequest {
  const fault = faultOfKey(key) ?? faultOfBody(body) ?? faultOfFields(kind, body as Fields)
  if (fault !== undefined) return { kind: 'invalid', message: fault }
  const { amountCents, currency, reference, account, of } = body as KeyedRequest
  const request = { kind, key: key as string, amountCents, currency, reference, account }
  return { kind: 'valid', request: of === undefined ? request : { ...request, of } }
}

type Fields = Readonly<Record<string, unknown>>

function faultOfKey(key: string | string[] | undefined): string | undefined {
  if (key === undefined) return 'Send an Idempotency-Key header.'
  if (typeof key === 'string' && key.length <= KEY_LENGTH_MAX && /^[\x20-\x7e]+$/.test(key)) return
  return `Idempotency-Key must be 1 to ${KEY_LENGTH_MAX} visible ASCII characters.`
}

function faultOfBody(body: unknown): string | undefined {
  if (typeof body !== 'object' || body === null || Array.isArray(body)) {
    return 'Send a JSON object.'
  }
  // An unknown field is refused: a misspelt field would otherwise be missing silently.
  const unknown = Object.keys(body).find((name) => !FIELDS.includes(name))
  return unknown === undefined ? undefined : `There is no field ${JSON.stringify(unknown)}.`
}

function faultOfFields(kind: EffectKind, fields: Fields): string | undefined {
  const { amountCents, currency, of } = fields
  if (!Number.isSafeInteger(amountCents) || Number(amountCents) < 1) {
    return 'amountCents must be a whole number, at least 1.'
  }
  if (typeof currency !== 'string' || !/^[A-Z]{3}$/.test(currency)) {
    return 'currency must be three capital letters.'
  }
  const unclear = ['reference', 'account'].find((name) => !isText(fields[name]))
  if (unclear !== undefined) {
    return `${unclear} must be 1 to ${TEXT_LENGTH_MAX} characters, and no control characters.`
  }
  const base = TAKES_FROM[kind]
  if (base === undefined && of !== undefined)
    return `A ${kind} refers to no other effect: leave out "of".`
  if (base !== undefined && !isText(of)) return `A ${kind} needs "of": the id of its ${base}.`
  return undefined
}

function isText(value: unknown): boolean {
  if (typeof value !== 'string' || value === '' || value.length > TEXT_LENGTH_MAX) return false
  // An unpaired surrogate would be stored as another character.
  return value.isWellFormed() && !/\p{Cc}/u.test(value)
}

function parse(bytes: Buffer): ReadBody {
  try {
    const text = new TextDecoder('utf-8', { fatal: true }).decode(bytes)
    return { kind: 'read', value: JSON.parse(text) as unknown }
  } catch {
    return { kind: 'malformed' }
  }
}
