/** A client of the payments example for tests. It retries nothing automatically. */
export interface Reply {
  readonly status: number
  readonly headers: Headers
  readonly text: string
  /** The parsed JSON body. */
  readonly body: Readonly<Record<string, unknown>>
}

export interface PostOptions {
  /** The idempotency key. Not sent if empty. */
  readonly key: string
  readonly token?: string
}

export interface Client {
  post(path: string, body: unknown, options: PostOptions): Promise<Reply>
  get(path: string, token?: string): Promise<Reply>
}

/** `own`: the token of requests without one. */
export function clientOf(address: string, own = 'demo-a'): Client {
  return {
    post: async (path, body, { key, token = own }) => {
      const headers = {
        Authorization: `Bearer ${token}`,
        'Content-Type': 'application/json',
        ...(key === '' ? {} : { 'Idempotency-Key': key }),
      }
      const text = typeof body === 'string' ? body : JSON.stringify(body)
      return toReply(await fetch(`${address}${path}`, { method: 'POST', headers, body: text }))
    },
    get: async (path, token = own) =>
      toReply(await fetch(`${address}${path}`, { headers: { Authorization: `Bearer ${token}` } })),
  }
}

export async function toReply(response: Response): Promise<Reply> {
  const { status, headers } = response
  const text = await response.text()
  const isJson = /json/.test(headers.get('content-type') ?? '')
  const body = isJson ? (JSON.parse(text) as Record<string, unknown>) : {}
  return { status, headers, text, body }
}

export function isReplay({ headers }: Reply): boolean {
  return headers.get('idempotent-replayed') === 'true'
}

/** A key of sufficient length with a name that shows what it is for. */
export function keyOf(name: string): string {
  return `${name}-0f1e2d3c4b5a6978`
}

export const PAYMENT = { customerId: 'cus_7', amountCents: 990, currency: 'KRW' } as const
