import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { boundaryOf, splitMultipart } from '../../../src/http/fingerprint/multipart.ts'

const split = (text: string, boundary: string) => {
  const { content, lengths } = splitMultipart(Buffer.from(text, 'latin1'), boundary)
  return { content: Buffer.from(content).toString('latin1'), lengths }
}

describe('a boundary', () => {
  it.each([
    ['multipart/form-data; boundary=abc', 'abc'],
    ['multipart/form-data;BOUNDARY="a b;c"', 'a b;c'],
    ['multipart/mixed; charset=x; boundary=--WebKit7; y=1', '--WebKit7'],
    ['multipart/mixed; boundary="a\\"b"', 'a"b'],
  ])('a boundary is found in %s', (contentType, boundary) => {
    expect(boundaryOf(contentType)).toBe(boundary)
  })

  it.each([
    'multipart/form-data',
    'multipart/form-data; boundary=',
    'multipart/form-data; boundary=""',
    `multipart/form-data; boundary=${'b'.repeat(71)}`,
    'multipart/form-data; xboundary=a',
  ])('no boundary is found in %s', (contentType) => {
    expect(boundaryOf(contentType)).toBeUndefined()
  })
})

describe('splitting a multipart body', () => {
  it('splitting removes delimiters only at the start of a line', () => {
    expect(split('--b\r\nA: 1\r\n\r\nx --b y\r\n--b\r\nz\r\n--b--\r\n', 'b')).toEqual({
      content: '\r\nA: 1\r\n\r\nx --b y\r\n\r\nz\r\n--\r\n',
      lengths: [0, 19, 5, 4],
    })
  })

  it('splitting keeps longer lines that start like a delimiter', () => {
    expect(split('--bb\r\n--b-\r\n--b\n', 'b').lengths).toEqual([16])
    expect(split('--b \r\n--b\t\r\n--b', 'b').lengths).toEqual([0, 3, 3, 0])
  })

  it('splitting gives the same parts for any boundary, and others for other content', () => {
    const boundary = fc.stringMatching(/^[A-Za-z0-9]{20,40}$/)
    const pieces = fc.array(fc.string({ unit: fc.constantFrom('-', 'b', '\r\n', 'x') }))
    fc.assert(
      fc.property(pieces, pieces, boundary, boundary, (one, two, first, second) => {
        const write = (parts: readonly string[], mark: string): string =>
          parts.map((part) => `--${mark}\r\n${part}\r\n`).join('')
        const isSame = JSON.stringify(one) === JSON.stringify(two)
        expect(split(write(one, first), first)).toEqual(split(write(one, second), second))
        const isSplitAlike =
          JSON.stringify(split(write(one, first), first)) ===
          JSON.stringify(split(write(two, second), second))
        expect(isSplitAlike).toBe(isSame)
      }),
    )
  })
})
