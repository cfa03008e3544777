/** One request over a real socket, with every possible outcome. */
import { Agent, request as open, type ClientRequest } from 'node:http'
import type { Answer, Outcome } from './seen.ts'

export interface HttpRequest {
  readonly port: number
  readonly method: 'GET' | 'POST'
  readonly path: string
  readonly headers: Readonly<Record<string, string>>
  readonly body?: string | undefined
  readonly timeoutMs: number
  /** Disconnects after a time, while the request is sent or after that. */
  readonly leaves?: { readonly afterMs: number; readonly halfSent: boolean } | undefined
}

export interface HttpClient {
  readonly send: (request: HttpRequest) => Promise<Outcome>
  readonly close: () => void
}

const SOCKETS_MAX = 64

export function httpClient(): HttpClient {
  const agent = new Agent({ keepAlive: true, maxSockets: SOCKETS_MAX })
  return {
    send: (request) => send(agent, request),
    close: () => agent.destroy(),
  }
}

function send(agent: Agent, options: HttpRequest): Promise<Outcome> {
  const { port, method, path, headers, body = '', timeoutMs, leaves } = options
  return new Promise((resolve) => {
    const timers: NodeJS.Timeout[] = []
    const sent: ClientRequest = open({ agent, host: '127.0.0.1', port, method, path, headers })
    const end = (outcome: Outcome) => {
      timers.forEach((timer) => clearTimeout(timer))
      resolve(outcome)
    }
    const giveUp = (why: string) => {
      end({ kind: 'no_answer', why })
      sent.destroy()
    }
    timers.push(setTimeout(() => giveUp(`no answer in ${timeoutMs} ms`), timeoutMs))
    if (leaves !== undefined) {
      timers.push(setTimeout(() => giveUp('the client disconnected'), leaves.afterMs))
    }
    // Socket errors after the end are ignored.
    sent.on('error', (error) => end({ kind: 'no_answer', why: error.message }))
    sent.on('response', (response) => {
      const chunks: Buffer[] = []
      response.on('data', (chunk: Buffer) => chunks.push(chunk))
      response.on('error', (error) => end({ kind: 'no_answer', why: error.message }))
      response.on('end', () => {
        const text = Buffer.concat(chunks).toString()
        // A truncated body is not an answer, because its client cannot read it.
        if (!response.complete) return end({ kind: 'no_answer', why: 'the answer was cut short' })
        end(toAnswer(response.statusCode ?? 0, response.headers, text))
      })
    })
    if (method === 'POST') sent.setHeader('content-length', Buffer.byteLength(body))
    if (leaves?.halfSent === true) sent.write(body.slice(0, body.length / 2))
    else sent.end(body)
  })
}

function toAnswer(
  status: number,
  headers: Readonly<Record<string, string | readonly string[] | undefined>>,
  body: string,
): Answer {
  const retryAfter = Number(headers['retry-after'] ?? Number.NaN)
  return {
    kind: 'answer',
    status,
    body,
    replayed: headers['idempotent-replayed'] === 'true',
    location: typeof headers['location'] === 'string' ? headers['location'] : undefined,
    retryAfterMs: Number.isFinite(retryAfter) ? retryAfter * 1000 : undefined,
  }
}
