const QUOTE = 0x22
const COLON = 0x3a
const BACKSLASH = 0x5c
const SPACE = 0x20

/**
 * `JSON.parse` without a bug of V8 (from 12.8 on; nodejs/node#63785): after V8 has parsed an object
 * with a `\` in a member name, another object with the same first members may get that name in
 * place of a name that its text writes with an escape. A recorded result must not change when it is
 * read back, and the request of one client must not make the key of another disappear. If a name
 * has an escape, the names are therefore rewritten without escapes before V8 parses the text.
 */
export function readJson(text: string): unknown {
  const encoded = text.includes('\\') ? encodeNames(text) : undefined
  return encoded === undefined ? JSON.parse(text) : decodeNames(JSON.parse(encoded))
}

/** Returns `undefined` if no name has an escape. The parser refuses text that is not JSON. */
function encodeNames(text: string): string | undefined {
  const names = namesOf(text)
  if (!names.some(([start, end]) => text.slice(start, end).includes('\\'))) return undefined
  let encoded = ''
  let from = 0
  for (const [start, end] of names) {
    const name = text.slice(start, end)
    if (!/[\\~]/.test(name)) continue
    encoded += `${text.slice(from, start)}"${encodeName(JSON.parse(name) as string)}"`
    from = end
  }
  return encoded + text.slice(from)
}

/** The positions of member names, including their quotes: the strings before a colon. */
function namesOf(text: string): readonly (readonly [start: number, end: number])[] {
  const names: [number, number][] = []
  for (let start = text.indexOf('"'); start >= 0;) {
    const end = endOfString(text, start + 1) + 1
    let next = end
    while (text.charCodeAt(next) <= SPACE) next += 1
    if (text.charCodeAt(next) === COLON) names.push([start, end])
    start = text.indexOf('"', end)
  }
  return names
}

/** The position of the quote that ends the string which contains `from`, or the end of the text. */
export function endOfString(text: string, from: number): number {
  let at = from
  while (at < text.length && text.charCodeAt(at) !== QUOTE) {
    at += text.charCodeAt(at) === BACKSLASH ? 2 : 1
  }
  return at
}

/** The characters that JSON must escape, and `~`, which begins an encoded character. */
// oxlint-disable-next-line no-control-regex -- JSON must escape them
const MUST_ENCODE = /["\\\u0000-\u001f~]/g
const ENCODED = /~([\da-f]{4})/g

/** Returns the same text for all spellings of a name. */
const encodeName = (name: string): string =>
  name.replace(MUST_ENCODE, (unit) => `~${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)

const decodeName = (name: string): string =>
  name.replace(ENCODED, (_, code: string) => String.fromCharCode(Number.parseInt(code, 16)))

/** Iterative, because a deep value would overflow the stack of a recursive function. */
function decodeNames(value: unknown): unknown {
  const root = [value]
  const remaining: object[] = [root]
  for (let parent = remaining.pop(); parent !== undefined; parent = remaining.pop()) {
    const members = parent as Record<string, unknown>
    for (const [name, member] of Object.entries(members)) {
      if (typeof member !== 'object' || member === null) continue
      const decoded = Array.isArray(member) ? member : withDecodedNames(member)
      members[name] = decoded
      remaining.push(decoded)
    }
  }
  return root[0]
}

function withDecodedNames(object: object): object {
  const entries = Object.entries(object)
  if (!entries.some(([name]) => name.includes('~'))) return object
  return Object.fromEntries(entries.map(([name, member]) => [decodeName(name), member]))
}
