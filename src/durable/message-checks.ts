/** What the outbox and the relay ask of names and ids before a database sees them. */
import { InvalidRequestError } from '../core/errors.ts'
import { describe } from '../core/options.ts'

/** Stored with every message, so what a database would refuse or quietly change must not get in. */
export const MESSAGE_NAME_LENGTH_MAX = 255

export function checkMessageName(where: string, value: unknown): string {
  const fault = faultOf(value)
  if (fault === undefined) return value as string
  throw new InvalidRequestError(`${where} ${fault}`)
}

/** What is wrong with a name; `undefined` where it may be stored. */
export function faultOf(value: unknown): string | undefined {
  if (typeof value !== 'string') return `must be a string, got ${describe(value)}`
  if (value === '') return 'must not be empty'
  if (value.length > MESSAGE_NAME_LENGTH_MAX) {
    return `has ${value.length} characters; at most ${MESSAGE_NAME_LENGTH_MAX} are allowed`
  }
  if (value.includes('\0')) return 'must not contain NUL'
  if (!value.isWellFormed()) {
    return 'contains half a surrogate pair; stores would turn it into another character'
  }
  return undefined
}

const UUID = /^[\da-f]{8}-[\da-f]{4}-[1-8][\da-f]{3}-[89ab][\da-f]{3}-[\da-f]{12}$/

/** In lower case only: the same id in another spelling would be another message. */
export function checkMessageId(value: unknown): string {
  if (typeof value === 'string' && UUID.test(value)) return value
  throw new InvalidRequestError(
    `the id of a message must be a UUID in lower case, got ${describe(value)}`,
  )
}
