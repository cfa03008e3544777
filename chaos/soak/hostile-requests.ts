/**
 * Malformed requests of every kind, the same for the same seed. Each is bytes for a connection of
 * its own. Some of them are good by chance: a flipped bit may do no harm.
 */
import { brotliCompressSync, deflateSync, gzipSync } from 'node:zlib'
import type { Dice } from './dice.ts'
import { bytesOf, chunked, goodDraft, headOf, toBytes, withHeader, type Draft } from './draft.ts'

export interface HostileRequest {
  readonly kind: string
  readonly bytes: Buffer
  readonly isHead: boolean
  /** Breaks off: whoever sends it goes away then. */
  readonly isCut: boolean
}

type Spoil = (dice: Dice, draft: Draft) => Buffer | Draft

export function hostileRequest(dice: Dice, key: string): HostileRequest {
  const kind = dice.pick(HOSTILE_KINDS)
  const spoilt = KINDS[kind]!(dice, goodDraft(dice, key))
  const bytes = Buffer.isBuffer(spoilt) ? spoilt : toBytes(spoilt)
  return { kind, bytes, isHead: bytes.subarray(0, 5).toString() === 'HEAD ', isCut: kind === 'cut' }
}

const KINDS: Readonly<Record<string, Spoil>> = {
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
    body: dice.chance(0.3) ? draft.body : spoilt(dice, dice.pick(COMPRESS)(draft.body)),
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
  flipped: (dice, draft) => spoilt(dice, toBytes({ ...draft, framing: 'length' })),
  bytes: (dice) => dice.bytes(1 + dice.below(400)),
  foreign: (dice) => dice.pick(FOREIGN),
}

export const HOSTILE_KINDS: readonly string[] = Object.keys(KINDS)

const TEXTS: readonly string[] = [
  '',
  ' ',
  '{',
  '[',
  '"',
  'null',
  'true',
  '0',
  '-0',
  '1e999',
  'NaN',
  '[]',
  '{}{}',
  '{"a":1,"a":2}',
  '{"__proto__":{"x":1}}',
  '{"constructor":{"prototype":{"x":1}}}',
  '{"customerId":"\\ud800","amountCents":1,"currency":"USD"}',
  '{"customerId":"a\\u0000b","amountCents":1,"currency":"USD"}',
  `{"customerId":"c","amountCents":${'9'.repeat(400)},"currency":"USD"}`,
  '\ufeff{}',
  "{'a':1}",
  '{"a":1,}',
  '// x\n{}',
]

function badJson(dice: Dice, body: Buffer): Buffer {
  return dice.chance(0.5) ? Buffer.from(dice.pick(TEXTS)) : spoilt(dice, body)
}

const VALUES: readonly unknown[] = [
  null,
  true,
  '',
  ' ',
  -1,
  0,
  1.5,
  9007199254740993,
  1e308,
  [],
  {},
  'x'.repeat(5000),
  '\u0000',
  '\ud800',
  "'; DROP TABLE payment; --",
  '${jndi:ldap://x}',
  { $gt: '' },
  [[[]]],
]

function badFields(dice: Dice): object {
  const names = ['customerId', 'amountCents', 'currency', 'sku', 'quantity', 'toAccount']
  return Object.fromEntries(names.map((name) => [name, dice.pick(VALUES)]))
}

const BAD_UTF8: readonly Buffer[] = [
  [0x80],
  [0xc0, 0xaf],
  [0xe2, 0x82],
  [0xed, 0xa0, 0x80],
  [0xf5, 0x80, 0x80, 0x80],
  [0xff, 0xfe],
  [0x00],
].map((bytes) => Buffer.from(bytes))

function splice(dice: Dice, body: Buffer, piece: Buffer): Buffer {
  const at = dice.below(body.length + 1)
  return Buffer.concat([body.subarray(0, at), piece, body.subarray(at)])
}

function deep(dice: Dice): Buffer {
  const depth = dice.pick([100, 1_000, 10_000, 40_000])
  if (dice.chance(0.5)) return Buffer.from('['.repeat(depth) + ']'.repeat(depth))
  return Buffer.from(`${'{"a":'.repeat(depth)}1${'}'.repeat(depth)}`)
}

/** A few bytes changed, taken away or put in. */
function spoilt(dice: Dice, bytes: Buffer): Buffer {
  let result: Buffer = Buffer.from(bytes)
  for (let times = 1 + dice.below(4); times > 0; times--) {
    const at = dice.below(result.length)
    if (dice.chance(0.4)) result[at] = dice.below(256)
    else if (dice.chance(0.5)) result = splice(dice, result, dice.bytes(1 + dice.below(3)))
    else result = Buffer.concat([result.subarray(0, at), result.subarray(at + 1)])
  }
  return result
}

const LENGTHS = [
  '-1',
  '+5',
  '0x10',
  '1e2',
  '5, 5',
  '5 5',
  '',
  ' ',
  '9'.repeat(30),
  'abc',
  '10',
  '2000000',
  '\x00',
  '1.5',
]
const ENCODINGS = [
  'chunked',
  'CHUNKED',
  'chunked, identity',
  'gzip, chunked',
  'identity',
  'xchunked',
  ' chunked',
  'chunked\x0b',
  '',
  'gzip',
]

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
    spoilt(dice, good),
  ])
}

const METHODS = [
  'GET',
  'HEAD',
  'OPTIONS',
  'PUT',
  'PATCH',
  'DELETE',
  'TRACE',
  'CONNECT',
  'PROPFIND',
  'post',
  'FOO',
  'P\x00ST',
  '',
  'POST POST',
  'M-SEARCH',
  'QUERY',
  'x'.repeat(3000),
]

const PATHS = [
  '',
  '/',
  '*',
  '//',
  '/..',
  '/../payments',
  '/payments/',
  '/PAYMENTS',
  '/payments//',
  '/payments?',
  '/payments?a=1&a=2',
  '/payments?%',
  '/payments?a[b]=1',
  '/payments#x',
  '/payments/%',
  '/payments/%00',
  '/payments/%E0%A4%A',
  '/payments/%ff%fe',
  '/payments/..%2f..',
  '/payments/%2e%2e/healthz',
  '/__proto__',
  '/constructor',
  '/payments/a/refunds',
  '/payments/%00/refunds',
  '/operations/%00',
  '/operations/x',
  '/transfers/%',
  '/orders/%ff',
  '/refunds/..',
  'http://elsewhere/payments',
  'http://',
  'payments',
  '/payments\x00',
  '/pay ments',
  '/payments\t',
  '/caf\xe9',
  `/${'x'.repeat(5000)}`,
  `/payments?${'x=1&'.repeat(2000)}`,
]

function badPath(dice: Dice): string {
  if (dice.chance(0.7)) return dice.pick(PATHS)
  return `/payments/${dice.bytes(1 + dice.below(40), 0x21, 0xff).toString('latin1')}`
}

const VERSIONS = ['1.0', '0.9', '2.0', '1.2', '9.9', '1', '', '1.1 ', 'x', '1.10', '01.1']

const HEADER_LINES = [
  'no colon\r\n',
  ': no name\r\n',
  'bad name: x\r\n',
  'X-Nul: a\x00b\r\n',
  'X-Fold: a\r\n b\r\n',
  ' X-Leading: a\r\n',
  'X-Space : a\r\n',
  'X-Cr: a\rb\r\n',
  'X-Lf: a\nIdempotency-Key: b\r\n',
  'X-High: \xff\xfe\r\n',
  'X-Bell: \x07\r\n',
  'Host: elsewhere\r\n',
  'Host: a b\r\n',
  'Content-Type: text/plain\r\n',
  'Authorization: Bearer demo-b\r\n',
  'Cookie: a=b; a=c; __proto__=d\r\n',
  'X-Forwarded-For: 1.2.3.4, \x7f\r\n',
  'Accept-Encoding: gzip;q=x, *;q=0\r\n',
  'If-None-Match: *\r\n',
  'Range: bytes=0-0,0-0,0-0\r\n',
  '__proto__: x\r\n',
  'constructor: x\r\n',
  'Content-Length : 3\r\n',
  'Transfer-Encoding: chunked\r\n',
  'Keep-Alive: timeout=9999999999\r\n',
]

const KEYS = [
  '',
  ' ',
  '""',
  '"',
  '"\\',
  '"a";b',
  '"a", "b"',
  'a,b',
  'a b',
  'a\tb',
  'a\x00b',
  '\x7f',
  '\xe9',
  '"\xe9"',
  '?1',
  ':YWJj:',
  '%"a"',
  '@1',
  '1.5',
  '(a b)',
  'ann@example.org',
  '"a"b',
  'undefined',
  'null',
  '[object Object]',
  '__proto__',
  '../../x',
  "' OR 1=1 --",
]

function badKey(dice: Dice): string {
  if (dice.chance(0.6)) return dice.pick(KEYS)
  if (dice.chance(0.5)) return 'k'.repeat(dice.pick([255, 256, 257, 1024, 5000, 12_000]))
  return dice
    .bytes(1 + dice.below(60), 0x01, 0xff)
    .toString('latin1')
    .replaceAll(/[\r\n]/g, '"')
}

const TYPES = [
  '',
  ' ',
  '/',
  ';',
  'json',
  'application/json;',
  'application/json; charset=utf-16',
  'application/json; charset=klingon',
  'application/json; charset="',
  'APPLICATION/JSON',
  'application/json, text/plain',
  'text/plain',
  'text/html',
  'application/xml',
  'application/x-www-form-urlencoded',
  'multipart/form-data',
  'multipart/form-data; boundary=',
  'multipart/form-data; boundary=x',
  'application/x-protobuf',
  'application/problem+json',
  'application/vnd.api+json; ext="x"',
  '\xff/\xff',
  'x'.repeat(4000),
  'application/json\x0b',
]
const CODINGS = [
  'gzip',
  'deflate',
  'br',
  'zstd',
  'identity',
  'compress',
  'gzip, gzip',
  'gzip, br, deflate',
  'GZIP',
  'x-gzip',
  '',
  ',',
  'klingon',
  '\xff',
  'identity, identity',
  Array.from({ length: 200 }, () => 'gzip').join(','),
]
const COMPRESS = [gzipSync, deflateSync, brotliCompressSync]
const AUTHORIZATIONS = [
  '',
  'Bearer',
  'Bearer ',
  'Bearer  demo-a',
  'bearer demo-a',
  'Basic ZGVtby1hOg==',
  'Bearer demo-a demo-b',
  'Bearer demo-c',
  'Bearer __proto__',
  'Bearer constructor',
  'Bearer \x00',
  'Bearer demo-a\xff',
  `Bearer ${'x'.repeat(8000)}`,
  'demo-a',
]
const EXPECTATIONS = [
  '100-continue',
  '100-Continue',
  '200-ok',
  '',
  '100-continue, 100-continue',
  'x'.repeat(500),
]

/** A few kilobytes that become megabytes. */
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

const SIGNATURES = [
  '',
  't=',
  't=,v1=',
  't=1,v1=00',
  't=99999999999,v1=00',
  'v1=00',
  't=x,v1=zz',
  `t=1,v1=${'0'.repeat(64)}`,
  `t=1,${'v1=00,'.repeat(500)}`,
  '\xff',
  't=1e999,v1=00',
  't=1,v1=%00',
  '=,=,=',
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

/** Those who have the wrong port. */
const FOREIGN: readonly Buffer[] = [
  bytesOf('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'),
  Buffer.from('16030100c8010000c403035f8a', 'hex'),
  bytesOf('SSH-2.0-OpenSSH_9.6\r\n'),
  bytesOf('EHLO localhost\r\n'),
  bytesOf('*1\r\n$4\r\nPING\r\n'),
  Buffer.from('00000008' + '04d2162f', 'hex'),
  bytesOf('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n'),
  bytesOf('\r\n'.repeat(2000)),
  bytesOf('GET /\r\n\r\n'),
  bytesOf('\x00'.repeat(500)),
]
