/**
 * Malformed requests of every kind, the same for the same seed, as bytes for separate connections.
 * Some of them are valid by chance: a flipped bit may be harmless.
 */
import { brotliCompressSync, deflateSync, gzipSync } from 'node:zlib'
import type { Dice } from './dice.ts'
import { bytesOf, chunked, goodDraft, headOf, toBytes, withHeader, type Draft } from './draft.ts'
import {
  AUTHORIZATIONS,
  BAD_UTF8,
  CODINGS,
  ENCODINGS,
  EXPECTATIONS,
  FOREIGN,
  HEADER_LINES,
  KEYS,
  LENGTHS,
  METHODS,
  PATHS,
  SIGNATURES,
  TEXTS,
  TYPES,
  VALUES,
  VERSIONS,
} from './hostile-values.ts'

export interface HostileRequest {
  readonly kind: string
  readonly bytes: Buffer
  readonly isHead: boolean
  /** The request is incomplete: its client disconnects after it. */
  readonly isCut: boolean
}

type Damage = (dice: Dice, draft: Draft) => Buffer | Draft

export function hostileRequest(dice: Dice, key: string): HostileRequest {
  const kind = dice.pick(HOSTILE_KINDS)
  const damaged = KINDS[kind]!(dice, goodDraft(dice, key))
  const bytes = Buffer.isBuffer(damaged) ? damaged : toBytes(damaged)
  return { kind, bytes, isHead: bytes.subarray(0, 5).toString() === 'HEAD ', isCut: kind === 'cut' }
}

const KINDS: Readonly<Record<string, Damage>> = {
  json: (dice, draft) => ({ ...draft, body: badJson(dice, draft.body) }),
  fields: (dice, draft) => ({ ...draft, body: Buffer.from(JSON.stringify(badFields(dice))) }),
  utf8: (dice, draft) => ({ ...draft, body: splice(dice, draft.body, dice.pick(BAD_UTF8)) }),
  deep: (dice, draft) => ({ ...draft, body: deep(dice) }),
  rubbish: (dice, draft) => ({ ...draft, body: dice.bytes(dice.below(300)) }),
  length: (dice, draft) => ({
    ...withHeader(draft, 'Content-Length', dice.pick(LENGTHS)),
    framing: 'none',
  }),
  lengths: (dice, draft) => {
    const first = withHeader(draft, 'Content-Length', `${draft.body.length}`)
    const second: Draft['headers'][number] = ['Content-Length', dice.pick(LENGTHS)]
    return { ...first, headers: [...first.headers, second], framing: 'none' }
  },
  smuggle: (dice, draft) => {
    const both = withHeader(draft, 'Content-Length', `${dice.below(60)}`)
    return { ...withHeader(both, 'Transfer-Encoding', dice.pick(ENCODINGS)), framing: 'none' }
  },
  chunks: (dice, draft) => {
    const head = headOf(withHeader(draft, 'Transfer-Encoding', 'chunked'))
    return Buffer.concat([bytesOf(`${head}\r\n`), badChunks(dice, draft.body)])
  },
  method: (dice, draft) => ({ ...draft, method: dice.pick(METHODS) }),
  path: (dice, draft) => ({ ...draft, path: badPath(dice) }),
  version: (dice, draft) => ({ ...draft, version: dice.pick(VERSIONS) }),
  header: (dice, draft) => {
    const head = headOf(draft) + dice.pick(HEADER_LINES)
    return Buffer.concat([
      bytesOf(`${head}Content-Length: ${draft.body.length}\r\n\r\n`),
      draft.body,
    ])
  },
  headers: (dice, draft) => {
    const flood = Array.from({ length: dice.pick([90, 150, 500, 3000]) }, (_, n) => [`x${n}`, 'y'])
    return { ...draft, headers: [...(flood as [string, string][]), ...draft.headers] }
  },
  large: (dice, draft) => withHeader(draft, 'X-Large', 'x'.repeat(dice.pick([9e3, 17e3, 90e3]))),
  key: (dice, draft) => withHeader(draft, 'Idempotency-Key', badKey(dice)),
  keys: (dice, draft) => {
    const second: Draft['headers'][number] = ['idempotency-key', dice.pick(['other', 'x', ''])]
    return { ...draft, headers: [...draft.headers, second] }
  },
  type: (dice, draft) => withHeader(draft, 'Content-Type', dice.pick(TYPES)),
  coding: (dice, draft) => ({
    ...withHeader(draft, 'Content-Encoding', dice.pick(CODINGS)),
    body: dice.chance(0.3) ? draft.body : damaged(dice, dice.pick(COMPRESS)(draft.body)),
  }),
  bomb: (dice, draft) => bomb(dice, draft),
  token: (dice, draft) => withHeader(draft, 'Authorization', dice.pick(AUTHORIZATIONS)),
  expect: (dice, draft) => withHeader(draft, 'Expect', dice.pick(EXPECTATIONS)),
  upgrade: (dice, draft) => {
    const upgrading = withHeader(draft, 'Connection', 'Upgrade, close')
    return withHeader(upgrading, 'Upgrade', dice.pick(['websocket', 'h2c', 'TLS/1.0', '\x01']))
  },
  webhook: (dice, draft) => webhook(dice, draft),
  cut: (dice, draft) => {
    const whole = toBytes({ ...draft, framing: dice.pick(['length', 'chunked']) })
    return whole.subarray(0, dice.below(whole.length))
  },
  flipped: (dice, draft) => damaged(dice, toBytes({ ...draft, framing: 'length' })),
  bytes: (dice) => dice.bytes(1 + dice.below(400)),
  foreign: (dice) => dice.pick(FOREIGN),
}

export const HOSTILE_KINDS: readonly string[] = Object.keys(KINDS)

function badJson(dice: Dice, body: Buffer): Buffer {
  return dice.chance(0.5) ? Buffer.from(dice.pick(TEXTS)) : damaged(dice, body)
}

function badFields(dice: Dice): object {
  const names = ['customerId', 'amountCents', 'currency', 'sku', 'quantity', 'toAccount']
  return Object.fromEntries(names.map((name) => [name, dice.pick(VALUES)]))
}

function splice(dice: Dice, body: Buffer, piece: Buffer): Buffer {
  const at = dice.below(body.length + 1)
  return Buffer.concat([body.subarray(0, at), piece, body.subarray(at)])
}

function deep(dice: Dice): Buffer {
  const depth = dice.pick([100, 1_000, 10_000, 40_000])
  if (dice.chance(0.5)) return Buffer.from('['.repeat(depth) + ']'.repeat(depth))
  return Buffer.from(`${'{"a":'.repeat(depth)}1${'}'.repeat(depth)}`)
}

/** Changes, removes or inserts a few bytes. */
function damaged(dice: Dice, bytes: Buffer): Buffer {
  let result: Buffer = Buffer.from(bytes)
  for (let times = 1 + dice.below(4); times > 0; times--) {
    const at = dice.below(result.length)
    if (dice.chance(0.4)) result[at] = dice.below(256)
    else if (dice.chance(0.5)) result = splice(dice, result, dice.bytes(1 + dice.below(3)))
    else result = Buffer.concat([result.subarray(0, at), result.subarray(at + 1)])
  }
  return result
}

function badChunks(dice: Dice, body: Buffer): Buffer {
  const good = chunked(body, 20)
  const size = dice.pick([
    '-5',
    '0x5',
    'zz',
    '',
    'ffffffffffffffff',
    '5 ',
    ' 5',
    '7fffffff',
    '5;a=b',
    '00005',
  ])
  const odd = Buffer.concat([bytesOf(`${size}\r\n`), body.subarray(0, 5), bytesOf('\r\n0\r\n\r\n')])
  const extension = bytesOf(`5;${'x'.repeat(dice.pick([10, 20_000]))}\r\nabcde\r\n0\r\n\r\n`)
  const trailer = bytesOf(`0\r\n${dice.pick(HEADER_LINES)}X-Trailer: ${'y'.repeat(100)}\r\n\r\n`)
  return dice.pick([
    odd,
    extension,
    Buffer.concat([good.subarray(0, -5), trailer]),
    Buffer.from(good.toString('latin1').replaceAll('\r\n', '\n'), 'latin1'),
    good.subarray(0, -2),
    damaged(dice, good),
  ])
}

function badPath(dice: Dice): string {
  if (dice.chance(0.7)) return dice.pick(PATHS)
  return `/payments/${dice.bytes(1 + dice.below(40), 0x21, 0xff).toString('latin1')}`
}

function badKey(dice: Dice): string {
  if (dice.chance(0.6)) return dice.pick(KEYS)
  if (dice.chance(0.5)) return 'k'.repeat(dice.pick([255, 256, 257, 1024, 5000, 12_000]))
  return dice
    .bytes(1 + dice.below(60), 0x01, 0xff)
    .toString('latin1')
    .replaceAll(/[\r\n]/g, '"')
}

const COMPRESS = [gzipSync, deflateSync, brotliCompressSync]

/** A few kilobytes that decompress to megabytes. */
function bomb(dice: Dice, draft: Draft): Draft {
  const [coding, body] = dice.pick(BOMBS)
  const armed = withHeader({ ...draft, body }, 'Content-Encoding', coding)
  return { ...armed, framing: dice.pick(['length', 'chunked']) }
}

const ZEROS = Buffer.alloc(20 * 1024 * 1024, '0')
const BOMBS: readonly (readonly [coding: string, body: Buffer])[] = [
  ['gzip', gzipSync(ZEROS)],
  ['deflate', deflateSync(ZEROS)],
  ['br', brotliCompressSync(ZEROS)],
  ['gzip, gzip', gzipSync(gzipSync(ZEROS))],
]

function webhook(dice: Dice, draft: Draft): Draft {
  const event = { id: 'evt_1', type: 'effect.succeeded', effect: { id: 'x', key: dice.pick(KEYS) } }
  const bodies = [
    Buffer.from(JSON.stringify(event)),
    dice.bytes(dice.below(200)),
    badJson(dice, draft.body),
    deep(dice),
  ]
  const signature = Math.floor(Date.now() / 1000)
  const now = `t=${signature},v1=${dice.bytes(32).toString('hex')}`
  const signed = withHeader(draft, 'Provider-Signature', dice.pick([...SIGNATURES, now, undefined]))
  return { ...signed, path: '/webhooks/provider', body: dice.pick(bodies) }
}
