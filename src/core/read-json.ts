const QUOTE = 0x22
const COLON = 0x3a
const BACKSLASH = 0x5c
const SPACE = 0x20

/**
 * What `JSON.parse` means by a text, also where V8 gets it wrong (from 12.8 on; nodejs/node#63785):
 * once an object with a `\` in a name was read, another one of the same beginning may get that name
 * in place of its own, if its own is written with an escape. A recorded result must not change
 * when it is read back, and nobody's key may vanish because of what somebody else has sent: names
 * are written without escapes while V8 reads them, where there are any.
 */
export function readJson(text: string): unknown {
  const shielded = text.includes('\\') ? shieldNames(text) : undefined
  return shielded === undefined ? JSON.parse(text) : bareNames(JSON.parse(shielded))
}

/** `undefined` where no name has an escape. What is not JSON is for the parser to refuse. */
function shieldNames(text: string): string | undefined {
  const names = namesOf(text)
  if (!names.some(([start, end]) => text.slice(start, end).includes('\\'))) return undefined
  let shielded = ''
  let from = 0
  for (const [start, end] of names) {
    const name = text.slice(start, end)
    if (!/[\\~]/.test(name)) continue
    shielded += `${text.slice(from, start)}"${shield(JSON.parse(name) as string)}"`
    from = end
  }
  return shielded + text.slice(from)
}

/** Where the names of members begin and end, with their quotes: strings before a colon. */
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

/** Where the string ends that goes on at `from`: its last quote, or the end of the text. */
export function endOfString(text: string, from: number): number {
  let at = from
  while (at < text.length && text.charCodeAt(at) !== QUOTE) {
    at += text.charCodeAt(at) === BACKSLASH ? 2 : 1
  }
  return at
}

/** What JSON must escape, and the sign that stands in for the escapes. */
// oxlint-disable-next-line no-control-regex -- JSON must escape them
const UNSPEAKABLE = /["\\\u0000-\u001f~]/g
const SHIELDED = /~([\da-f]{4})/g

/** The same for all spellings of a name. */
const shield = (name: string): string =>
  name.replace(UNSPEAKABLE, (unit) => `~${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)

const bare = (name: string): string =>
  name.replace(SHIELDED, (_, code: string) => String.fromCharCode(Number.parseInt(code, 16)))

/** Without a call for each level, for which a deep value would have no room. */
function bareNames(value: unknown): unknown {
  const whole = [value]
  const left: object[] = [whole]
  for (let holder = left.pop(); holder !== undefined; holder = left.pop()) {
    const members = holder as Record<string, unknown>
    for (const [name, member] of Object.entries(members)) {
      if (typeof member !== 'object' || member === null) continue
      const renamed = Array.isArray(member) ? member : withBareNames(member)
      members[name] = renamed
      left.push(renamed)
    }
  }
  return whole[0]
}

function withBareNames(object: object): object {
  const entries = Object.entries(object)
  if (!entries.some(([name]) => name.includes('~'))) return object
  return Object.fromEntries(entries.map(([name, member]) => [bare(name), member]))
}
