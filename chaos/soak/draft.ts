/** Valid requests, in parts that can be damaged one by one. */
import type { Dice } from './dice.ts'

export interface Draft {
  readonly method: string
  readonly path: string
  readonly version: string
  readonly headers: readonly (readonly [name: string, value: string])[]
  readonly body: Buffer
  /** `length`: with Content-Length. `none`: sends a body without announcing it. */
  readonly framing: 'length' | 'chunked' | 'none'
}

export const TOKENS = { a: 'demo-a', b: 'demo-b' } as const

interface Route {
  readonly path: string
  readonly body: object
}

const ROUTES: readonly Route[] = [
  { path: '/payments', body: { customerId: 'cus_1', amountCents: 1250, currency: 'USD' } },
  { path: '/orders', body: { customerId: 'cus_1', sku: 'tea', quantity: 1 } },
  { path: '/transfers', body: { toAccount: 'acc_1', amountCents: 500, currency: 'USD' } },
  {
    path: '/payments/00000000-0000-4000-8000-000000000000/refunds',
    body: { amountCents: 100 },
  },
]

/** A valid request, most often for a payment. */
export function goodDraft(dice: Dice, key: string): Draft {
  const { path, body } = dice.chance(0.6) ? ROUTES[0]! : dice.pick(ROUTES)
  return draftOf(path, body, key)
}

export function draftOf(path: string, body: object, key: string, token: string = TOKENS.a): Draft {
  return {
    method: 'POST',
    path,
    version: '1.1',
    headers: [
      ['Host', 'localhost'],
      ['Connection', 'close'],
      ['Authorization', `Bearer ${token}`],
      ['Idempotency-Key', key],
      ['Content-Type', 'application/json'],
    ],
    body: Buffer.from(JSON.stringify(body)),
    framing: 'length',
  }
}

/** Replaces a header; `undefined` removes it. */
export function withHeader(draft: Draft, name: string, value: string | undefined): Draft {
  const others = draft.headers.filter(([one]) => one.toLowerCase() !== name.toLowerCase())
  return { ...draft, headers: value === undefined ? others : [...others, [name, value]] }
}

/** One byte per character, so that a header may contain any byte. */
export const bytesOf = (text: string): Buffer => Buffer.from(text, 'latin1')

export function headOf({ method, path, version, headers }: Draft): string {
  const lines = headers.map(([name, value]) => `${name}: ${value}\r\n`)
  return `${method} ${path} HTTP/${version}\r\n${lines.join('')}`
}

export function toBytes(draft: Draft): Buffer {
  const { body, framing } = draft
  const head = headOf(draft)
  if (framing === 'none') return Buffer.concat([bytesOf(`${head}\r\n`), body])
  if (framing === 'length') {
    return Buffer.concat([bytesOf(`${head}Content-Length: ${body.length}\r\n\r\n`), body])
  }
  const start = bytesOf(`${head}Transfer-Encoding: chunked\r\n\r\n`)
  return Buffer.concat([start, chunked(body, Math.max(1, Math.ceil(body.length / 3)))])
}

export function chunked(body: Buffer, size: number): Buffer {
  const parts: Buffer[] = []
  for (let at = 0; at < body.length; at += size) {
    const piece = body.subarray(at, at + size)
    parts.push(bytesOf(`${piece.length.toString(16)}\r\n`), piece, bytesOf('\r\n'))
  }
  return Buffer.concat([...parts, bytesOf('0\r\n\r\n')])
}
