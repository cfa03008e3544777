import { parseItem } from 'structured-headers'
import { personalDataIn } from './personal-data.ts'

/** What counts as a key. The guard fills it from the route's options. */
export interface KeyRules {
  /**
   * `lenient` takes a structured-field String and a bare value, and they are the same key: real
   * SDKs send bare ones. `strict` takes only the String the IETF draft asks for.
   */
  readonly syntax: 'lenient' | 'strict'
  /** Counted in UTF-16 units after quotes and escapes are removed; so is `lengthMax`. */
  readonly lengthMin: number
  readonly lengthMax: number
  /** Searched for in the key: anchor it with `^` and `$` to describe the whole key. */
  readonly pattern: RegExp | undefined
  /**
   * Refuses keys that contain an e-mail address, a phone number (a plus and 7 to 15 digits) or a
   * US social security number (ddd-dd-dddd). Keys end up in logs and support tickets. It is a
   * guard against habits, not a detector: names, or digits without a plus, pass.
   */
  readonly refusePersonalData: boolean
}

export type KeyParse =
  | { readonly kind: 'key'; readonly key: string }
  | { readonly kind: 'missing' }
  /** `detail` is for the client: what is wrong and what to do. It never contains the key. */
  | { readonly kind: 'malformed'; readonly detail: string }

// A String without escapes and parameters: all that a careful client ever sends.
const PLAIN_STRING = /^"([\x20\x21\x23-\x5b\x5d-\x7e]*)"$/
// Where a String ends and its parameters begin; the parser says whether it is one.
const STRING = /^"(?:[^"\\]|\\.)*"/
// A Date as the value of a parameter, as far as the sign that makes it one.
const DATE_SIGN = /=@(?=-?\d{1,15}(?:;|$))/g
const PRINTABLE_ASCII = /^[\x20-\x7e]*$/
const CONTROL = /\p{Cc}/u

const EMPTY = 'The idempotency key is empty. Send a unique value, such as a UUID.'
const BAD_CHARACTERS =
  'The idempotency key contains a control character or a character outside ASCII. Send only ' +
  'printable ASCII, such as a UUID.'
const SENT_TWICE =
  'The idempotency key was sent more than once. Send it exactly once with each request.'
const COMMA =
  'The idempotency key contains a comma, or was sent twice. Send it once, and put a key that ' +
  'contains a comma in double quotes.'
const BAD_STRING =
  'The idempotency key starts with a double quote but is not one well-formed structured-field ' +
  'string (RFC 9651). Send it once, end it with a double quote, and put a backslash before a ' +
  'double quote or backslash inside it.'
const UNQUOTED =
  'The idempotency key must be a structured-field string (RFC 9651). Put it in double quotes.'

/** The key in a header, as the server hands the header over. */
export function parseKeyHeader(
  value: string | readonly string[] | undefined,
  rules: KeyRules,
): KeyParse {
  if (value === undefined) return { kind: 'missing' }
  if (typeof value === 'string') return parseValue(value, rules)
  const [first, ...others] = value
  if (first === undefined) return { kind: 'missing' }
  return others.length > 0 ? malformed(SENT_TWICE) : parseValue(first, rules)
}

/** A key from anywhere but a header: a body field, or a function of the route. */
export function checkKey(key: unknown, rules: KeyRules): KeyParse {
  if (key === undefined) return { kind: 'missing' }
  if (typeof key !== 'string') return malformed('The idempotency key must be a string.')
  if (key.trim() === '') return malformed(EMPTY)
  if (CONTROL.test(key)) {
    return malformed('The idempotency key contains a control character. Send printable text.')
  }
  if (!key.isWellFormed()) {
    return malformed(
      'The idempotency key contains half a surrogate pair. Send well-formed Unicode text.',
    )
  }
  return checkRules(key, rules)
}

function parseValue(value: string, rules: KeyRules): KeyParse {
  const trimmed = trimOptionalWhitespace(value)
  if (trimmed === '') return malformed(EMPTY)
  if (!PRINTABLE_ASCII.test(trimmed)) return malformed(BAD_CHARACTERS)
  if (!trimmed.startsWith('"')) return parseBare(trimmed, rules)
  const key = PLAIN_STRING.exec(trimmed)?.[1] ?? parseString(trimmed)
  return key === undefined ? malformed(BAD_STRING) : checkKey(key, rules)
}

function parseBare(value: string, rules: KeyRules): KeyParse {
  if (rules.syntax === 'strict') return malformed(UNQUOTED)
  // Servers join repeated header lines by commas, so a comma may hide a second key.
  return value.includes(',') ? malformed(COMMA) : checkRules(value, rules)
}

/** Parameters are allowed and mean nothing, as RFC 9651 asks of fields that define none. */
function parseString(value: string): string | undefined {
  const string = STRING.exec(value)?.[0] ?? ''
  // The parser takes a Date only where nothing follows it, but an Integer anywhere.
  const parameters = value.slice(string.length).replaceAll(DATE_SIGN, '=')
  try {
    const [item] = parseItem(string + parameters)
    return typeof item === 'string' ? item : undefined
  } catch {
    return undefined
  }
}

function checkRules(key: string, rules: KeyRules): KeyParse {
  if (key.length < rules.lengthMin) {
    return malformed(
      `The idempotency key has ${key.length} characters, fewer than the ${rules.lengthMin} this ` +
        'operation asks for. Send a longer unique value, such as a UUID.',
    )
  }
  if (key.length > rules.lengthMax) {
    return malformed(
      `The idempotency key has ${key.length} characters; at most ${rules.lengthMax} are allowed. ` +
        'Send a shorter unique value, such as a UUID.',
    )
  }
  // `search`, because `test` would start a `g` or `y` pattern where the last key ended.
  if (rules.pattern !== undefined && key.search(rules.pattern) < 0) {
    return malformed(
      'The idempotency key does not have the form this operation asks for. See its documentation.',
    )
  }
  const found = rules.refusePersonalData ? personalDataIn(key) : undefined
  if (found === undefined) return { kind: 'key', key }
  return malformed(
    `The idempotency key seems to contain ${found}. Keys are kept and may be logged: send a ` +
      'random value, such as a UUID.',
  )
}

/** HTTP's optional whitespace is space and tab; `trim` would also take what is malformed. */
function trimOptionalWhitespace(value: string): string {
  let start = 0
  let end = value.length
  while (start < end && isSpaceOrTab(value.charCodeAt(start))) start += 1
  while (end > start && isSpaceOrTab(value.charCodeAt(end - 1))) end -= 1
  return value.slice(start, end)
}

const isSpaceOrTab = (code: number): boolean => code === 0x20 || code === 0x09

const malformed = (detail: string): KeyParse => ({ kind: 'malformed', detail })
