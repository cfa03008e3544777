import { randomUUID } from 'node:crypto'

/**
 * The JSON text of a parsed body, or `undefined` if it has none: it is cyclic, too deep, or
 * contains an opaque value such as a Map, a stream or a file. All opaque values would print as
 * `{}`, so that different requests would look the same. A bigint prints as its digits.
 */
export function valueToJson(value: unknown): string | undefined {
  // JSON.stringify cannot emit raw digits, so a bigint becomes a string with a random prefix.
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
    // The body may have any class, so its toJSON or its getters may throw, too.
    return undefined
  }
}

function refuseOpaque(member: object | null): object | null {
  if (member === null || Array.isArray(member) || Object.keys(member).length > 0) return member
  const prototype: unknown = Object.getPrototypeOf(member)
  if (prototype === null || Object.getPrototypeOf(prototype) === null) return member
  throw new TypeError('a value of this class has no JSON form')
}
