import type { StoredReply } from '../../../src/http/reply/reply-codec.ts'

const JSON_REPLY: StoredReply = {
  status: 201,
  headers: [
    ['content-type', 'application/json; charset=utf-8'],
    ['location', '/payments/1'],
  ],
  body: new TextEncoder().encode('{"paid":true}'),
  elided: false,
  schemaVersion: 3,
}

const HEAD =
  '000300c90002000c0000001f' +
  hexOf('content-typeapplication/json; charset=utf-8') +
  '00080000000b' +
  hexOf('location/payments/1')

/** Bytes that a release with format version 1 wrote, and the replies that it read from them. */
export const VERSION_1_REPLIES: readonly (readonly [
  name: string,
  hex: string,
  reply: StoredReply,
])[] = [
  ['JSON', `0100${HEAD}${hexOf('{"paid":true}')}`, JSON_REPLY],
  [
    'text',
    '0100000100c80002000c00000019' +
      hexOf('content-typetext/plain; charset=utf-8') +
      '000600000005' +
      hexOf('x-namecaf\u00e9') +
      hexOf('gr\u00fc\u00dfe'),
    {
      status: 200,
      headers: [
        ['content-type', 'text/plain; charset=utf-8'],
        ['x-name', 'caf\u00e9'],
      ],
      body: new TextEncoder().encode('gr\u00fc\u00dfe'),
      elided: false,
      schemaVersion: 1,
    },
  ],
  [
    'binary',
    `0100000300c90001000c00000018${hexOf('content-typeapplication/octet-stream')}00ff0d0a0102`,
    {
      ...JSON_REPLY,
      headers: [['content-type', 'application/octet-stream']],
      body: Uint8Array.of(0, 255, 13, 10, 1, 2),
    },
  ],
  [
    'empty',
    '0100000100cc0000',
    { status: 204, headers: [], body: new Uint8Array(0), elided: false, schemaVersion: 1 },
  ],
  ['elided', `0101${HEAD}`, { ...JSON_REPLY, body: new Uint8Array(0), elided: true }],
]

/** The same, sealed by a hook that flips bytes with 0x5a (`flipping` in `encryptions.ts`). */
export const VERSION_1_SEALED: readonly (readonly [
  name: string,
  hex: string,
  reply: StoredReply,
])[] = VERSION_1_REPLIES.filter(([name]) => name === 'JSON' || name === 'elided').map(
  ([name, hex, reply]) => {
    const flags = Number.parseInt(hex.slice(2, 4), 16) | 2
    const content = Buffer.from(hex.slice(4), 'hex').map((byte) => byte ^ 0x5a)
    return [name, `01${hexOf(Uint8Array.of(flags))}${hexOf(content)}`, reply]
  },
)

function hexOf(bytes: string | Uint8Array): string {
  return Buffer.from(bytes as string).toString('hex')
}
