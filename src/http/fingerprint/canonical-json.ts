import { endOfString } from '../../core/read-json.ts'
import { JSON_DEPTH_MAX } from '../../protocol/limits.ts'
import { canonicalNumber } from './canonical-number.ts'

/**
 * The canonical form (RFC 8785) of a JSON text: member names sorted, no whitespace, one spelling
 * for each string and number. Returns `undefined` if the text is not JSON or is nested deeper than
 * `JSON_DEPTH_MAX`.
 *
 * Works on the text and not on the parsed value, because parsing would make 2^53 and 2^53 + 1 the
 * same number: a number that a double cannot hold exactly keeps all its digits. If several members
 * have the same name, the last one counts, as it does for a handler that parses the body.
 */
export function canonicalJson(text: string): string | undefined {
  return isJson(text) ? new Scanner(text).scan()?.text : undefined
}

/**
 * The members of a JSON object, by name, each value in canonical form. Returns `undefined` unless
 * the text is an object that `canonicalJson` accepts.
 */
export function canonicalMembers(text: string): ReadonlyMap<string, string> | undefined {
  return isJson(text) ? new Scanner(text).scan()?.members : undefined
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch {
    // The text is no JSON, or is nested so deep that the parser of the runtime ran out of stack.
    return false
  }
}

/** A finished value. Has `members` if it is an object. */
interface Canonical {
  readonly text: string
  readonly members: ReadonlyMap<string, string> | undefined
}

/** A container whose end is not reached yet. An object if it has `members`, else an array. */
interface Container {
  /** The elements so far, if it is an array. */
  text: string
  readonly members: Map<string, string> | undefined
  /** The name of the member whose value comes next. */
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

// oxlint-disable-next-line no-control-regex -- JSON must escape control characters
const NEEDS_ESCAPE = /["\\\u0000-\u001f\ud800-\udfff]/

/**
 * Scans a text that is known to be JSON in one pass, so it only skips separators. Keeps an explicit
 * stack and does not recurse, because the client chooses the depth. Concatenates with `+`, which V8
 * does without copying; `join` would copy a deep text once for every level.
 */
class Scanner {
  readonly #text: string
  /** If false, strings are escaped: UTF-8 would turn every lone surrogate into U+FFFD. */
  readonly #isWellFormed: boolean
  readonly #stack: Container[] = []
  #at = 0
  /** Index of the next backslash. Most texts have none, so most strings need no unescaping. */
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

  /** Adds a value to the open container. Returns false if there is none: it is the whole text. */
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

  /** Returns `undefined` for the name of a member, which is kept until its value comes. */
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

  /** Returns a value as canonical text, and a name decoded, because names are sorted decoded. */
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
  // `sort` orders by UTF-16 code units, as RFC 8785 requires.
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

/** A character of a number, `true`, `false` or `null`. False for NaN, the code past the end. */
const isWordCharacter = (code: number): boolean =>
  (code >= 0x30 && code <= 0x39) ||
  isLetter(code) ||
  code === 0x2b ||
  code === 0x2d ||
  code === 0x2e ||
  code === 0x45
