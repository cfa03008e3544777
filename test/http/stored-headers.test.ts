import { describe, expect, it } from 'vitest'
import { InvalidOptionsError } from '../../src/core/errors.ts'
import {
  pickStored,
  resolveStoredHeaders,
  STORED_HEADERS_DEFAULT,
} from '../../src/http/stored-headers.ts'

describe('the headers a replay repeats', () => {
  it('are the default ones and the route’s own, in lower case', () => {
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
    ['proxy-whatever', /one connection/],
    ['Date', /computes it for each message/],
    ['content-length', /computes it for each message/],
    ['age', /computes it for each message/],
    ['Idempotent-Replayed', /sets it itself/],
    ['idempotency-expires', /sets it itself/],
  ])('can never include %s, and the error says why', (name, why) => {
    expect(() => resolveStoredHeaders([name])).toThrow(InvalidOptionsError)
    expect(() => resolveStoredHeaders([name])).toThrow(why)
  })

  it.each(['', 'x y', 'x:y', ':status', 'ü', 7, null])('must have a name, not %j', (name) => {
    expect(() => resolveStoredHeaders([name as string])).toThrow(InvalidOptionsError)
  })

  it('must be an array', () => {
    expect(() => resolveStoredHeaders('etag' as unknown as string[])).toThrow(/an array/)
  })
})

describe('picking', () => {
  it('keeps allowed headers in their order, whatever their case, and repeats', () => {
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

  it('drops what the Connection headers name, before and after them', () => {
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
