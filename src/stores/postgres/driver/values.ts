/**
 * Values as text that PostgreSQL parses: arrays and single values as parameters of a statement, and
 * literals inside the text of a statement.
 */
import { ValueFault } from '../../kit/value-fault.ts'

/**
 * Formats an array as PostgreSQL reads it. Drivers differ in which arrays they can write, but each
 * of them passes a text on unchanged.
 */
export function numberArray(values: readonly (number | null)[]): string {
  return `{${values.map((value) => value ?? 'NULL').join(',')}}`
}

/** Sends one element for all rows if they have the same value, which most columns have. */
export function sharedNumbers(values: readonly (number | null)[]): string {
  return numberArray(areSame(values) ? values.slice(0, 1) : values)
}

/** Does for texts what `sharedNumbers` does for numbers. */
export function sharedTexts(values: readonly (string | null | undefined)[]): string {
  return textArray(areSame(values) ? values.slice(0, 1) : values)
}

function areSame(values: readonly unknown[]): boolean {
  const [first] = values
  for (const value of values) if (value !== first) return false
  return true
}

export function textArray(values: readonly (string | null | undefined)[]): string {
  return `{${values.map(textElement).join(',')}}`
}

/** Takes hexadecimal texts; the database rejects any other text. */
export function hexArray(values: readonly (string | null)[]): string {
  return `{${values.map((value) => (value === null ? 'NULL' : hexElement(value))).join(',')}}`
}

export function bytesArray(values: readonly (Uint8Array | null)[]): string {
  return hexArray(values.map((value) => (value === null ? null : toHex(value))))
}

/** Formats one `bytea` value from hexadecimal text. */
export function hexValue(hex: string): string {
  return String.raw`\x${hex}`
}

export function bytesValue(value: Uint8Array | undefined): string | null {
  return value === undefined ? null : hexValue(toHex(value))
}

export function textValue(value: string | undefined): string | null {
  if (value === undefined) return null
  checkText(value)
  return value
}

/**
 * The literals are for transactions of other tools. They contain no `?`, `$` and `:`, which some
 * tools replace as placeholders. A text is written in hexadecimal, so no character of it can end
 * the literal or look like a placeholder.
 */
export function textLiteral(value: string | undefined): string {
  if (value === undefined) return 'CAST(NULL AS text)'
  checkText(value)
  return `pg_catalog.convert_from(${hexLiteral(Buffer.from(value).toString('hex'))}, 'UTF8')`
}

export function hexLiteral(hex: string): string {
  if (!/^[0-9a-f]*$/i.test(hex)) throw new ValueFault('an identity is not hexadecimal')
  return `pg_catalog.decode('${hex}', 'hex')`
}

export function bytesLiteral(value: unknown): string {
  if (!(value instanceof Uint8Array)) throw new ValueFault('a value is not a Uint8Array')
  return hexLiteral(Buffer.from(value.buffer, value.byteOffset, value.byteLength).toString('hex'))
}

export function numberLiteral(value: number | null, type: 'int' | 'float8' = 'float8'): string {
  if (value === null) return `CAST(NULL AS ${type})`
  if (!Number.isFinite(value)) throw new ValueFault('a number is not finite')
  return `CAST(${value} AS ${type})`
}

/** A text of another form is the id of no record, and the database would reject the statement. */
export function isUuid(text: string | undefined): text is string {
  return text !== undefined && /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(text)
}

function textElement(value: string | null | undefined): string {
  if (value === null || value === undefined) return 'NULL'
  checkText(value)
  const isPlain = !value.includes('"') && !value.includes('\\')
  return `"${isPlain ? value : value.replaceAll(/["\\]/g, String.raw`\$&`)}"`
}

/** Drivers write U+FFFD for half a surrogate pair, so two keys would become one. */
function checkText(value: string): void {
  if (!value.isWellFormed()) throw new ValueFault('a text contains half a surrogate pair')
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
