/**
 * Values in the text of a statement, for transactions of other tools. Without `?`, `$` and `:`,
 * which some of them take for placeholders.
 */
import { ValueFault } from './array-literal.ts'

/** Every text as hexadecimal: nothing in it can end the literal, or look like a placeholder. */
export function textLiteral(value: string | undefined): string {
  if (value === undefined) return 'CAST(NULL AS text)'
  if (!value.isWellFormed()) throw new ValueFault('a text contains half a surrogate pair')
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
