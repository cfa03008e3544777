/** A property of what the SDK passes on, which is described nowhere in full. */
export function fieldOf(value: unknown, name: string): unknown {
  if (typeof value !== 'object' || value === null) return undefined
  return Reflect.get(value, name) as unknown
}
