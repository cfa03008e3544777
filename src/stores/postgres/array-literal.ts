/**
 * Arrays as PostgreSQL reads them. Made here, because drivers differ in which arrays they know how
 * to write, and a text passes through all of them untouched.
 */

export function numberArray(values: readonly (number | null)[]): string {
  return `{${values.map((value) => value ?? 'NULL').join(',')}}`
}

/** Of a column that mostly says the same in all rows: then once, and it stands for all. */
export function sharedNumbers(values: readonly (number | null)[]): string {
  return numberArray(areSame(values) ? values.slice(0, 1) : values)
}

/** The same of texts. */
export function sharedTexts(values: readonly (string | null | undefined)[]): string {
  return textArray(areSame(values) ? values.slice(0, 1) : values)
}

function areSame(values: readonly unknown[]): boolean {
  const [first] = values
  for (const value of values) if (value !== first) return false
  return true
}

/** Refuses half a surrogate pair: drivers write U+FFFD for it, and two keys would become one. */
export function textArray(values: readonly (string | null | undefined)[]): string {
  return `{${values.map(textElement).join(',')}}`
}

/** From hexadecimal text; what is not hexadecimal is refused by the database. */
export function hexArray(values: readonly (string | null)[]): string {
  return `{${values.map((value) => (value === null ? 'NULL' : hexElement(value))).join(',')}}`
}

export function bytesArray(values: readonly (Uint8Array | null)[]): string {
  return hexArray(values.map((value) => (value === null ? null : toHex(value))))
}

/** From hexadecimal text, by itself. */
export function hexValue(hex: string): string {
  return String.raw`\x${hex}`
}

export function bytesValue(value: Uint8Array | undefined): string | null {
  return value === undefined ? null : hexValue(toHex(value))
}

/** A text by itself, refused where it would be changed on its way. */
export function textValue(value: string | undefined): string | null {
  if (value === undefined) return null
  if (!value.isWellFormed()) throw new ValueFault('a text contains half a surrogate pair')
  return value
}

/** One value that no column can hold. Thrown before anything is sent. */
export class ValueFault extends Error {}

function textElement(value: string | null | undefined): string {
  if (value === null || value === undefined) return 'NULL'
  if (!value.isWellFormed()) throw new ValueFault('a text contains half a surrogate pair')
  const isPlain = !value.includes('"') && !value.includes('\\')
  return `"${isPlain ? value : value.replaceAll(/["\\]/g, String.raw`\$&`)}"`
}

function hexElement(hex: string): string {
  if (hex.includes('"') || hex.includes('\\'))
    throw new ValueFault('an identity is not hexadecimal')
  return String.raw`"\\x${hex}"`
}

function toHex(value: unknown): string {
  if (!(value instanceof Uint8Array)) throw new ValueFault('a result is not a Uint8Array')
  return Buffer.from(value.buffer, value.byteOffset, value.byteLength).toString('hex')
}
