/**
 * Whether a value must be awaited. `instanceof Promise` would miss the promises of query builders,
 * database drivers and key services: they have classes of their library or of another realm.
 */
export function isThenable<Value>(value: Value | PromiseLike<Value>): value is PromiseLike<Value> {
  return typeof (value as PromiseLike<Value> | null | undefined)?.then === 'function'
}
