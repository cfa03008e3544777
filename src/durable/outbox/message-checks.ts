/** Checks of names and ids before they are stored. */
import { InvalidRequestError } from '../../core/errors.ts'
import { describe } from '../../core/options.ts'

/** The length of the columns. */
export const MESSAGE_NAME_LENGTH_MAX = 255

export function checkMessageName(where: string, value: unknown): string {
  const fault = faultOf(value)
  if (fault === undefined) return value as string
  throw new InvalidRequestError(`${where} ${fault}`)
}

/** Describes what is wrong with a name. `undefined` if every database stores it unchanged. */
export function faultOf(value: unknown): string | undefined {
  if (typeof value !== 'string') return `must be a string, got ${describe(value)}`
  if (value === '') return 'must not be empty'
  if (value.length > MESSAGE_NAME_LENGTH_MAX) {
    return `has ${value.length} characters; at most ${MESSAGE_NAME_LENGTH_MAX} are allowed`
  }
  if (value.includes('\0')) return 'must not contain NUL'
  if (!value.isWellFormed()) {
    return 'contains half of a surrogate pair, which a database would replace'
  }
  return undefined
}

const UUID = /^[\da-f]{8}-[\da-f]{4}-[1-8][\da-f]{3}-[89ab][\da-f]{3}-[\da-f]{12}$/

/** Only lower case: the same id in upper case would be another message in some databases. */
export function checkMessageId(value: unknown): string {
  if (typeof value === 'string' && UUID.test(value)) return value
  throw new InvalidRequestError(
    `the id of a message must be a UUID in lower case, got ${describe(value)}`,
  )
}
