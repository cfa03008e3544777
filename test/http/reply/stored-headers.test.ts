import { describe, expect, it } from 'vitest'
import { InvalidOptionsError } from '../../../src/core/errors.ts'
import {
  pickStored,
  resolveStoredHeaders,
  STORED_HEADERS_DEFAULT,
} from '../../../src/http/reply/stored-headers.ts'

describe('the headers a replay repeats', () => {
  it('replayed headers are the default ones and those of the route, in lower case', () => {
    const allowed = resolveStoredHeaders(['X-Payment-Id', 'ETag'])
    expect([...allowed].sort()).toEqual([...STORED_HEADERS_DEFAULT, 'x-payment-id'].sort())
  })

  it.each([
    ['Set-Cookie', /session or challenge of another/],
    ['set-cookie2', /session or challenge of another/],
    ['WWW-Authenticate', /session or challenge of another/],
    ['Connection', /one connection/],
    ['keep-alive', /one connection/],
    ['TE', /one connection/],
    ['trailer', /one connection/],
    ['Transfer-Encoding', /one connection/],
    ['upgrade', /one connection/],
    ['Proxy-Authenticate', /one connection/],
    ['proxy-other', /one connection/],
    ['Date', /computes it for each message/],
    ['content-length', /computes it for each message/],
    ['age', /computes it for each message/],
    ['Idempotent-Replayed', /sets it itself/],
    ['idempotency-expires', /sets it itself/],
  ])('storeHeaders refuses %s with a reason', (name, why) => {
    expect(() => resolveStoredHeaders([name])).toThrow(InvalidOptionsError)
    expect(() => resolveStoredHeaders([name])).toThrow(why)
  })

  it.each(['', 'x y', 'x:y', ':status', 'ü', 7, null])(
    'storeHeaders refuses the name %j',
    (name) => {
      expect(() => resolveStoredHeaders([name as string])).toThrow(InvalidOptionsError)
    },
  )

  it('storeHeaders must be an array', () => {
    expect(() => resolveStoredHeaders('etag' as unknown as string[])).toThrow(/an array/)
  })
})

describe('picking', () => {
  it('picking keeps allowed headers in order, in any case, and repeated', () => {
    const picked = pickStored(
      [
        ['Content-Type', 'text/plain'],
        ['Set-Cookie', 'sid=1'],
        ['X-Request-Id', '7'],
        ['LINK', '</a>'],
        ['Link', '</b>'],
        ['Date', 'now'],
      ],
      resolveStoredHeaders(),
    )
    expect(picked).toEqual([
      ['content-type', 'text/plain'],
      ['link', '</a>'],
      ['link', '</b>'],
    ])
  })

  it('picking drops the headers that Connection names, before and after it', () => {
    const allowed = resolveStoredHeaders(['X-Hop', 'X-Other'])
    const picked = pickStored(
      [
        ['x-hop', '1'],
        ['Connection', 'close, X-HOP'],
        ['connection', 'etag'],
        ['etag', '"1"'],
        ['x-other', '2'],
      ],
      allowed,
    )
    expect(picked).toEqual([['x-other', '2']])
  })
})
