import { randomUUID } from 'node:crypto'

/**
 * The JSON text of a parsed body, or `undefined` where it has none: cyclic, too deep, or holding
 * something opaque such as a Map, a stream or a file. Those would all print as `{}`, and requests
 * that differ would pass for the same one. A bigint prints as its digits.
 */
export function valueToJson(value: unknown): string | undefined {
  // JSON has no escape for raw digits, so a bigint goes through as a string with a random mark.
  let mark: string | undefined
  try {
    const text: string | undefined = JSON.stringify(value, (_name, member: unknown) => {
      if (typeof member === 'object') return refuseOpaque(member)
      if (typeof member !== 'bigint') return member
      mark ??= randomUUID()
      return `${mark}${member}`
    })
    if (text === undefined || mark === undefined) return text
    return text.replaceAll(new RegExp(`"${mark}(-?\\d+)"`, 'g'), '$1')
  } catch {
    // The body may be of any class, so its own toJSON or getters may throw anything too.
    return undefined
  }
}

function refuseOpaque(member: object | null): object | null {
  if (member === null || Array.isArray(member) || Object.keys(member).length > 0) return member
  const prototype: unknown = Object.getPrototypeOf(member)
  if (prototype === null || Object.getPrototypeOf(prototype) === null) return member
  throw new TypeError('a value of this class has no JSON form')
}
