/**
 * How values are written into statements and read from rows, the same for every table.
 *
 * Texts travel as hexadecimal digits in both directions. So neither the character set of a
 * connection nor its `sql_mode` nor a driver's own conversions can change a single byte of them.
 */

export type Kind = 'hex' | 'text' | 'word' | 'number' | 'bytes'

export interface Column {
  readonly name: string
  readonly kind: Kind
  /** Texts: how long the column is, in characters. */
  readonly lengthMax?: number
}

/** How a column is read from the table that goes by this name in the statement. */
export function readColumn({ name, kind }: Column, table: string): string {
  return kind === 'hex' || kind === 'text' ? `HEX(${table}.${name})` : `${table}.${name}`
}

/** What came back for such a column. */
export function fromColumn({ kind }: Column, value: unknown): unknown {
  return value === null || value === undefined ? undefined : READERS[kind](value)
}

const READERS: Readonly<Record<Kind, (value: unknown) => unknown>> = {
  hex: (value) => String(value).toLowerCase(),
  text: (value) => Buffer.from(String(value), 'hex').toString('utf8'),
  word: String,
  number: Number,
  bytes: (value) => toBytes(value as Uint8Array),
}

/** As it came in: drivers give a `Buffer`. */
function toBytes({ buffer, byteOffset, byteLength }: Uint8Array): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength)
}

/** One value that no column can hold. Thrown before anything is sent. */
export class ValueFault extends Error {}

/** A value as SQL. Whatever is not exactly what the column holds is refused, never cut or bent. */
export function toColumn(column: Column, value: unknown): string {
  if (value === undefined) return 'NULL'
  const sql = WRITERS[column.kind](value, column)
  if (sql === undefined) throw new ValueFault(`${column.name} cannot hold its value`)
  return sql
}

const WRITERS: Readonly<Record<Kind, (value: unknown, column: Column) => string | undefined>> = {
  hex: (value) => (isMatch(value, /^[0-9a-f]{32}$/) ? `x'${value}'` : undefined),
  // Half a surrogate pair would be written as U+FFFD, and two keys would become one.
  text: (value, { lengthMax = Infinity }) =>
    typeof value === 'string' && value.length <= lengthMax && value.isWellFormed()
      ? `x'${Buffer.from(value, 'utf8').toString('hex')}'`
      : undefined,
  word: (value) => (isMatch(value, /^[0-9a-z_-]{1,36}$/) ? `'${value}'` : undefined),
  number: (value) => {
    const whole = Math.round(Number(value))
    return typeof value === 'number' && Number.isSafeInteger(whole) ? String(whole) : undefined
  },
  bytes: (value) =>
    value instanceof Uint8Array
      ? `x'${Buffer.from(value.buffer, value.byteOffset, value.byteLength).toString('hex')}'`
      : undefined,
}

function isMatch(value: unknown, pattern: RegExp): value is string {
  return typeof value === 'string' && pattern.test(value)
}

/** A number that is in no column: a limit, a span of time. */
export function numberLiteral(name: string, value: number): string {
  return toColumn({ name, kind: 'number' }, value)
}

/** Another text can be the id of no record, and of no message. */
export function isUuid(text: string | undefined): text is string {
  return isMatch(text, /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/)
}

export function isIdentity(text: string | undefined): text is string {
  return isMatch(text, /^[0-9a-f]{32}$/)
}
