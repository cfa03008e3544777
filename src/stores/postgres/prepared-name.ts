import { hash } from 'node:crypto'

const names = new Map<string, string>()

/**
 * The name of a prepared statement is a hash of its text: two versions of the package, or two
 * tables, may share a connection, and one name with two texts is an error.
 */
export function preparedName(text: string): string {
  let name = names.get(text)
  if (name === undefined) {
    name = `oncekey_${hash('sha256', text, 'hex').slice(0, 24)}`
    names.set(text, name)
  }
  return name
}
