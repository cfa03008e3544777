import { endOfString } from '../core/read-json.ts'
import { JSON_DEPTH_MAX } from '../protocol/limits.ts'
import { canonicalNumber } from './canonical-number.ts'

/**
 * The canonical form (RFC 8785) of a JSON text: member names sorted, no whitespace, one spelling
 * for each string and number. `undefined` when the text is not JSON or is nested deeper than
 * `JSON_DEPTH_MAX`.
 *
 * It is made from the text and not from the parsed value, because parsing would make 2^53 and
 * 2^53 + 1 the same number: a number that no double holds exactly keeps all its digits. Of members
 * with the same name the last one counts, as it does for a handler that parses the body.
 */
export function canonicalJson(text: string): string | undefined {
  return isJson(text) ? new Scanner(text).scan()?.text : undefined
}

/**
 * The members of a JSON object, by name, each value in canonical form. `undefined` when the text
 * is anything but an object that `canonicalJson` takes.
 */
export function canonicalMembers(text: string): ReadonlyMap<string, string> | undefined {
  return isJson(text) ? new Scanner(text).scan()?.members : undefined
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch {
    // Not JSON, or so deep that this engine's own parser ran out of stack.
    return false
  }
}

/** A finished value; `members` where it is an object. */
interface Canonical {
  readonly text: string
  readonly members: ReadonlyMap<string, string> | undefined
}

/** A container whose end is not reached yet: an object if it has `members`. */
interface Container {
  /** What an array holds so far. */
  text: string
  readonly members: Map<string, string> | undefined
  /** The name that waits for its value. */
  name: string | undefined
}

const QUOTE = 0x22
const COMMA = 0x2c
const COLON = 0x3a
const OPEN_BRACKET = 0x5b
const CLOSE_BRACKET = 0x5d
const OPEN_BRACE = 0x7b
const CLOSE_BRACE = 0x7d
const SPACE = 0x20

// oxlint-disable-next-line no-control-regex -- JSON must escape them
const NEEDS_ESCAPE = /["\\\u0000-\u001f\ud800-\udfff]/

/**
 * One pass over a text known to be JSON, so separators only need to be stepped over. It keeps a
 * stack of its own, because the depth is the client's choice. Containers are joined with `+`,
 * which V8 does without copying; `join` would copy a deep text once for every level.
 */
class Scanner {
  readonly #text: string
  /** Half a surrogate pair must become an escape, or hashing would make it U+FFFD. */
  readonly #isWellFormed: boolean
  readonly #stack: Container[] = []
  #at = 0
  /** Where the next backslash is. Most texts have none, so most strings need no look inside. */
  #backslash: number

  constructor(text: string) {
    this.#text = text
    this.#isWellFormed = text.isWellFormed()
    this.#backslash = indexOrEnd(text, '\\', 0)
  }

  scan(): Canonical | undefined {
    for (;;) {
      const code = this.#text.charCodeAt(this.#at)
      if (code <= SPACE || code === COMMA || code === COLON) {
        this.#at += 1
      } else if (code === OPEN_BRACE || code === OPEN_BRACKET) {
        if (this.#stack.length === JSON_DEPTH_MAX) return undefined
        this.#at += 1
        const members = code === OPEN_BRACE ? new Map<string, string>() : undefined
        this.#stack.push({ text: '', members, name: undefined })
      } else if (code === CLOSE_BRACE || code === CLOSE_BRACKET) {
        this.#at += 1
        const { text, members } = this.#stack.pop()!
        const whole = members === undefined ? `[${text}]` : objectText(members)
        if (!this.#add(whole)) return { text: whole, members }
      } else {
        const text = this.#scalar(code)
        if (text !== undefined && !this.#add(text)) return { text, members: undefined }
      }
    }
  }

  /** False when there is nothing to add to: the value is the whole text. */
  #add(text: string): boolean {
    const parent = this.#stack.at(-1)
    if (parent === undefined) return false
    if (parent.members === undefined) {
      parent.text += parent.text === '' ? text : `,${text}`
    } else {
      parent.members.set(parent.name!, text)
      parent.name = undefined
    }
    return true
  }

  /** `undefined` when it was a member's name, which is kept until its value comes. */
  #scalar(code: number): string | undefined {
    if (code !== QUOTE) return this.#word(code)
    const parent = this.#stack.at(-1)
    if (parent?.members === undefined || parent.name !== undefined) return this.#string('value')
    parent.name = this.#string('name')
    return undefined
  }

  #word(code: number): string {
    const start = this.#at
    while (isWordCharacter(this.#text.charCodeAt(this.#at))) this.#at += 1
    const word = this.#text.slice(start, this.#at)
    return isLetter(code) ? word : canonicalNumber(word)
  }

  /** A value as canonical text, a name decoded: names are sorted by what they mean. */
  #string(role: 'name' | 'value'): string {
    const start = this.#at
    let end = this.#text.indexOf('"', start + 1)
    const isEscaped = this.#backslash < end
    if (isEscaped) {
      end = endOfString(this.#text, this.#backslash)
      this.#backslash = indexOrEnd(this.#text, '\\', end)
    }
    this.#at = end + 1
    if (role === 'name' && !isEscaped) return this.#text.slice(start + 1, end)
    const raw = this.#text.slice(start, end + 1)
    if (role === 'name') return JSON.parse(raw) as string
    return isEscaped || !this.#isWellFormed ? JSON.stringify(JSON.parse(raw)) : raw
  }
}

function objectText(members: ReadonlyMap<string, string>): string {
  let text = ''
  // The default order of `sort` is that of UTF-16 code units, as RFC 8785 asks.
  for (const name of [...members.keys()].sort()) {
    const quoted = NEEDS_ESCAPE.test(name) ? JSON.stringify(name) : `"${name}"`
    text += `${text === '' ? '' : ','}${quoted}:${members.get(name)!}`
  }
  return `{${text}}`
}

function indexOrEnd(text: string, character: string, from: number): number {
  const index = text.indexOf(character, from)
  return index < 0 ? text.length : index
}

const isLetter = (code: number): boolean => code >= 0x61 && code <= 0x7a

/** Whatever may stand in a number, `true`, `false` or `null`; NaN, past the end, may not. */
const isWordCharacter = (code: number): boolean =>
  (code >= 0x30 && code <= 0x39) ||
  isLetter(code) ||
  code === 0x2b ||
  code === 0x2d ||
  code === 0x2e ||
  code === 0x45
