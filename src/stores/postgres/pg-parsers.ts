import type { PgTypes } from './client.ts'

type Parser = (text: string) => unknown

/** By the number of the type. All others are taken as the texts they come as. */
const PARSERS: ReadonlyMap<number, Parser> = new Map<number, Parser>([
  [16, (text) => text === 't'],
  [17, bytesFrom],
  [23, Number],
  [701, Number],
])

/**
 * How what the database answers is read. Our own, because the parsers of `pg` are the application's
 * to change, for all connections of the process: numbers to texts or BigInts, bytes to texts.
 */
export const TYPES: PgTypes = {
  getTypeParser: (type) => PARSERS.get(type) ?? String,
}

/** In either form, as `bytea_output` has it. */
function bytesFrom(text: string): Buffer {
  if (text.startsWith('\\x')) return Buffer.from(text.slice(2), 'hex')
  const unescaped = text.replace(/\\(\\|[0-7]{3})/g, (_, code: string) =>
    code === '\\' ? code : String.fromCharCode(Number.parseInt(code, 8)),
  )
  return Buffer.from(unescaped, 'latin1')
}
