/** A member's name in a JSON text, with its quotes, and the colon that makes it one. */
const NAME = /"([^"\\]*(?:\\.[^"\\]*)*)"(\s*:)?/g

/**
 * What `JSON.parse` means by a text, also where V8 gets it wrong (from 12.8 on; nodejs/node#63785):
 * once an object with a `\` in a name was read, another one of the same beginning may get that name
 * in place of its own, if its own is written with an escape. A recorded result must not change
 * when it is read back, so such names are written without one while V8 reads them.
 */
export function readJson(text: string): unknown {
  if (!hasEscapedName(text)) return JSON.parse(text)
  const shielded = text.replace(NAME, (string, name: string, colon: string | undefined) => {
    return colon === undefined ? string : `"${shield(name)}"${colon}`
  })
  return JSON.parse(shielded, (_name, value: unknown) => {
    if (typeof value !== 'object' || value === null || Array.isArray(value)) return value
    return Object.fromEntries(Object.entries(value).map(([name, member]) => [bare(name), member]))
  })
}

function hasEscapedName(text: string): boolean {
  if (!text.includes('\\')) return false
  for (const [, name, colon] of text.matchAll(NAME)) {
    if (colon !== undefined && name!.includes('\\')) return true
  }
  return false
}

/** The same for all spellings of a name; the mark keeps it from looking like an index. */
function shield(name: string): string {
  const meant = name.includes('\\') ? (JSON.parse(`"${name}"`) as string) : name
  return `.${Buffer.from(meant, 'utf16le').toString('hex')}`
}

const bare = (shielded: string): string => Buffer.from(shielded.slice(1), 'hex').toString('utf16le')
