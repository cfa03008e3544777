import { parseItem } from 'structured-headers'

/** The rules for keys. The guard takes them from the options of the route. */
export interface KeyRules {
  /**
   * `lenient` accepts a structured-field String and a bare value, as the same key: real SDKs send
   * bare ones. `strict` accepts only the String that the IETF draft requires.
   */
  readonly syntax: 'lenient' | 'strict'
  /** In UTF-16 units, after quotes and escapes are removed; so is `lengthMax`. */
  readonly lengthMin: number
  readonly lengthMax: number
  /** Searched for in the key: anchor it with `^` and `$` to match the whole key. */
  readonly pattern: RegExp | undefined
  /**
   * Refuses keys that contain an e-mail address, a phone number (a plus and 7 to 15 digits) or a
   * US social security number (ddd-dd-dddd), because keys appear in logs and support tickets. The
   * check prevents common mistakes and is no complete detector: names, and digits without a plus,
   * pass.
   */
  readonly refusePersonalData: boolean
}

export type KeyParse =
  | { readonly kind: 'key'; readonly key: string }
  | { readonly kind: 'missing' }
  /** `detail` says to the client what is wrong and what to do. It never contains the key. */
  | { readonly kind: 'malformed'; readonly detail: string }

// A String without escapes and parameters, as nearly all clients send it.
const PLAIN_STRING = /^"([\x20\x21\x23-\x5b\x5d-\x7e]*)"$/
// Finds the end of a String, where its parameters begin. The parser checks its syntax.
const STRING = /^"(?:[^"\\]|\\.)*"/
// Finds the sign that makes the value of a parameter a Date.
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

/** Parses the key in a header. The server has the header as a string or as a list of lines. */
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

/** Checks a key that is not in a header: from a body field, or from a function of the route. */
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
  // Servers join repeated header lines with commas, so a comma may separate two keys.
  return value.includes(',') ? malformed(COMMA) : checkRules(value, rules)
}

/** Parameters are accepted and ignored, as RFC 9651 requires for fields that define none. */
function parseString(value: string): string | undefined {
  const string = STRING.exec(value)?.[0] ?? ''
  // The parser accepts a Date only at the end of the header, but an Integer anywhere.
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
      `The idempotency key has ${key.length} characters, fewer than the ${rules.lengthMin} that ` +
        'this operation requires. Send a longer unique value, such as a UUID.',
    )
  }
  if (key.length > rules.lengthMax) {
    return malformed(
      `The idempotency key has ${key.length} characters; at most ${rules.lengthMax} are allowed. ` +
        'Send a shorter unique value, such as a UUID.',
    )
  }
  // `search`, because `test` would start a `g` or `y` pattern where the last match ended.
  if (rules.pattern !== undefined && key.search(rules.pattern) < 0) {
    return malformed(
      'The idempotency key does not have the form that this operation requires. See its ' +
        'documentation.',
    )
  }
  const found = rules.refusePersonalData ? personalDataIn(key) : undefined
  if (found === undefined) return { kind: 'key', key }
  return malformed(
    `The idempotency key seems to contain ${found}. Keys are kept and may be logged: send a ` +
      'random value, such as a UUID.',
  )
}

/** Optional whitespace in HTTP is space and tab. `trim` would also remove invalid characters. */
function trimOptionalWhitespace(value: string): string {
  let start = 0
  let end = value.length
  while (start < end && isSpaceOrTab(value.charCodeAt(start))) start += 1
  while (end > start && isSpaceOrTab(value.charCodeAt(end - 1))) end -= 1
  return value.slice(start, end)
}

const isSpaceOrTab = (code: number): boolean => code === 0x20 || code === 0x09

const malformed = (detail: string): KeyParse => ({ kind: 'malformed', detail })

// One character before the @ is enough to decide, and keeps the search linear. The last label
// must be letters, so that `package@10.20.30` is not an address.
const EMAIL = /[^\s@]@(?:[^\s@.]+\.)+\p{L}{2,}/u

// A plus, then 7 to 15 digits (E.164), each after at most three separators. A plus inside a word,
// or letters right after the number, indicate base64.
const PHONE = /(?<![\p{L}\d+/=])\+\d(?:[ ().\-/]{0,3}\d){6,14}(?![\p{L}\d+/=])/u

// ddd-dd-dddd without letters or digits around it. No group of a UUID has two or three digits.
const SOCIAL_SECURITY_NUMBER = /(?<![\p{L}\d])\d{3}-\d{2}-\d{4}(?![\p{L}\d])/u

/** Names the personal data that a key seems to contain, in words for the client. */
function personalDataIn(key: string): string | undefined {
  if (EMAIL.test(key)) return 'an e-mail address'
  if (PHONE.test(key)) return 'a phone number'
  if (SOCIAL_SECURITY_NUMBER.test(key)) return 'a social security number'
  return undefined
}
