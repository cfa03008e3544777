/**
 * What a response of `@hono/node-server` will send, where that is no stream: a text, or nothing.
 * Its responses are light until somebody asks for their stream, and asking is what costs.
 * `undefined` where a response must be read the usual way.
 */
export function lightBody(response: Response): string | null | undefined {
  for (const symbol of Object.getOwnPropertySymbols(response)) {
    if (symbol.description !== 'cache') continue
    const cache: unknown = Reflect.get(response, symbol)
    if (!Array.isArray(cache) || cache[0] !== response.status) return undefined
    const body: unknown = cache[1]
    return typeof body === 'string' || body === null ? body : undefined
  }
  return undefined
}
