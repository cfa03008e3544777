import { describe, expect, it } from 'vitest'
import { currentIdempotency } from '../../src/http/guard/current.ts'
import { Client } from '../adapters/run-express.ts'
import { SERVERS, servePayments, type PaymentsApi } from './payments-api.ts'
import { replies, wireRequest, type WireReply } from './wire.ts'

// Every form in which a key can arrive: which forms are the same key, and which are refused.

/** The outcome of a form: a key, a problem of the guard, or a refusal by Node. */
type Fate =
  | { readonly key: string }
  | { readonly code: string; readonly detail: RegExp }
  | { readonly node: number }

const key = (text: string): Fate => ({ key: text })
const node = (status: number): Fate => ({ node: status })
const malformed = (detail: RegExp): Fate => ({ code: 'idempotency_key_malformed', detail })
const missing: Fate = { code: 'idempotency_key_missing', detail: /Send a unique value/ }
const unquoted = malformed(/Put it in double quotes/)
const noString = malformed(/not one well-formed structured-field string/)
const empty = malformed(/is empty/)
const notAscii = malformed(/control character or a character outside ASCII/)
const comma = malformed(/contains a comma, or was sent twice/)

interface Shape {
  readonly what: string
  /** Header lines; one character is one byte. */
  readonly lines: readonly string[]
  readonly lenient: Fate
  readonly strict: Fate
}

const shape = (what: string, lines: string | readonly string[], fates: readonly Fate[]): Shape => ({
  what,
  lines: typeof lines === 'string' ? [lines] : lines,
  lenient: fates[0]!,
  strict: fates[1] ?? fates[0]!,
})

const named = (what: string, value: string, ...fates: readonly Fate[]) =>
  shape(what, `Idempotency-Key: ${value}`, fates)

const SHAPES: readonly Shape[] = [
  // Strings and bare values.
  named('a quoted string', '"abc-1"', key('abc-1')),
  named('a bare token', 'abc-1', key('abc-1'), unquoted),
  named('escapes', '"a\\"b\\\\c"', key('a"b\\c')),
  named('a comma in quotes', '"a,b"', key('a,b')),
  named('spaces in quotes', '" a "', key(' a ')),
  named('bare base64', 'mZ+8/Qy3Jk0hVw==', key('mZ+8/Qy3Jk0hVw=='), unquoted),
  named('a bare value with a space', 'order 12', key('order 12'), unquoted),
  named('a bare value with a quote inside', 'a"b', key('a"b'), unquoted),
  named('a bare value with a backslash', 'a\\b', key('a\\b'), unquoted),
  named('single quotes, which are part of the key', "'abc'", key("'abc'"), unquoted),
  named('a percent sign, which is part of the key', 'a%20b', key('a%20b'), unquoted),

  // Parameters are ignored.
  named('a parameter', '"k";a=1', key('k')),
  named('parameters of every type', '"k";a=1;b=1.5;c="x";d=tok;e=:YQ==:;f=?0;g', key('k')),
  named('parameters of RFC 9651', '"k";d=@1659578233;s=%"f%c3%bc"', key('k')),
  named('a space after the semicolon', '"k"; a=1', key('k')),
  named('a space before the semicolon', '"k" ;a=1', noString),
  named('a parameter without a name', '"k";=1', noString),
  named('a parameter in capitals', '"k";A=1', noString),
  named('a semicolon in a bare value, which is part of it', 'k;a=1', key('k;a=1'), unquoted),

  // Whitespace around the value is not part of it.
  named('leading and trailing blanks and tabs', ' \t "k" \t ', key('k')),
  named('blanks around a bare value', '  k\t', key('k'), unquoted),
  shape('no blank after the colon', 'Idempotency-Key:"k"', [key('k')]),

  // Header names are case-insensitive.
  shape('an odd case', 'iDeMpOtEnCy-KeY: "k"', [key('k')]),
  shape('a blank before the colon', 'Idempotency-Key : "k"', [node(400)]),
  shape('an underscore, which is another header', 'Idempotency_Key: "k"', [missing]),
  shape('no header at all', [], [missing]),

  // Other types of structured fields are not strings.
  named('an integer', '42', key('42'), unquoted),
  named('a decimal', '-1.5', key('-1.5'), unquoted),
  named('a boolean', '?1', key('?1'), unquoted),
  named('a byte sequence', ':aGVsbG8=:', key(':aGVsbG8=:'), unquoted),
  named('a date', '@1659578233', key('@1659578233'), unquoted),
  named('a display string', '%"f%c3%bc"', key('%"f%c3%bc"'), unquoted),
  named('an inner list', '("a" "b")', key('("a" "b")'), unquoted),

  // Two keys are refused.
  named('a list of bare keys', 'a, b', comma, unquoted),
  named('a list of one key twice', 'a,a', comma, unquoted),
  named('a list of quoted keys', '"a", "b"', noString),
  named('a comma at the end', '"a",', noString),
  shape('two lines', ['Idempotency-Key: a', 'Idempotency-Key: b'], [comma, unquoted]),
  shape('one key in two lines', ['Idempotency-Key: "a"', 'idempotency-key: "a"'], [noString]),
  shape(
    'an empty line beside a key',
    ['Idempotency-Key:', 'Idempotency-Key: a'],
    [comma, unquoted],
  ),
  // RFC 9651 4.2: lines are joined by a comma before they are parsed.
  shape('a string over two lines', ['Idempotency-Key: "a', 'Idempotency-Key: b"'], [key('a, b')]),

  // Invalid strings.
  named('an open string', '"abc', noString),
  named('a quote at the end only', 'abc"', key('abc"'), unquoted),
  named('text after the string', '"a"b', noString),
  named('an invalid escape', '"a\\n"', noString),
  named('a backslash at the end', '"a\\"', noString),
  named('one quote', '"', noString),

  // Empty values.
  named('no value', '', empty),
  named('blanks', ' \t ', empty),
  named('an empty string', '""', empty),
  named('a string of blanks', '"   "', empty),

  // Bytes that a key must not contain.
  named('UTF-8', Buffer.from('schlüssel').toString('latin1'), notAscii),
  named('UTF-8 in quotes', Buffer.from('"schlüssel"').toString('latin1'), notAscii),
  named('a byte of Latin 1', 'caf\xe9', notAscii),
  named('the byte 255', '"\xff"', notAscii),
  named('a tab inside', '"a\tb"', notAscii),
  named('a no-break space', '\xa0', notAscii),
  named('a control character', 'a\x07b', node(400)),
  named('DEL', 'a\x7fb', node(400)),
  named('NUL', 'a\0b', node(400)),
  named('a bare line feed', 'a\nb', node(400)),
  shape('a value folded over two lines', ['Idempotency-Key: "a', ' b"'], [node(400)]),

  // Lengths: 255 characters without quotes and escapes.
  named('255 characters', `"${'k'.repeat(255)}"`, key('k'.repeat(255))),
  named('255 characters, each escaped', `"${'\\"'.repeat(255)}"`, key('"'.repeat(255))),
  named('256 characters', `"${'k'.repeat(256)}"`, malformed(/256 characters; at most 255/)),
  named('4 KiB', `"${'k'.repeat(4096)}"`, malformed(/4096 characters; at most 255/)),
  named('20 KiB', `"${'k'.repeat(20_480)}"`, node(431)),
]

async function post(api: PaymentsApi, lines: readonly string[]): Promise<WireReply> {
  const client = await Client.connect(api.server.port)
  client.socket.write(wireRequest(lines))
  const [reply] = await replies(client, 1)
  client.socket.destroy()
  return reply!
}

/** The string as RFC 9651 writes it. */
const quoted = (text: string) => `"${text.replaceAll(/["\\]/g, '\\$&')}"`

describe.each(SERVERS)('%s:', (_name, mount) => {
  describe.each(['lenient', 'strict'] as const)('to a %s API,', (keySyntax) => {
    it.each(SHAPES)('$what is handled as specified', async ({ lines, [keySyntax]: fate }) => {
      const api = await servePayments({
        mount,
        options: { keySyntax },
        work: (res) => res.end(JSON.stringify({ key: currentIdempotency()?.key })),
      })
      const reply = await post(api, lines)
      if ('node' in fate) {
        expect([reply.status, reply.headers.has('link')]).toEqual([fate.node, false])
        expect(api.runs()).toBe(0)
        return
      }
      if ('code' in fate) {
        expect(reply.status).toBe(400)
        const { code, detail } = JSON.parse(reply.body) as Record<string, string>
        expect([code, detail]).toEqual([fate.code, expect.stringMatching(fate.detail)])
        expect(api.runs()).toBe(0)
        return
      }
      expect([reply.status, JSON.parse(reply.body)]).toEqual([200, { key: fate.key }])
      // The same key in the syntax of the draft finds the same record.
      const again = await post(api, [`Idempotency-Key: ${quoted(fate.key)}`])
      expect([again.body, again.headers.get('idempotent-replayed')]).toEqual([reply.body, 'true'])
      expect(api.runs()).toBe(1)
    })
  })
})
