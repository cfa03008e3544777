import type { RawAnswer, RawReply } from './raw-exchange.ts'

/** Internal details that no client may see. */
const INSIDE = /\n\s+at |node_modules|node:internal|file:\/\/|\.ts:\d|SQLITE_|SqliteError|pg_/

/**
 * The faults of an answer to a hostile request: every reply must be complete, below 500, and a
 * problem if it refuses. No reply is valid if the connection was closed.
 */
export function faultsOf({ replies, rest, end }: RawAnswer): string[] {
  const faults = replies.flatMap((reply) => faultsOfReply(reply))
  if (end === 'silence') faults.push('the connection was left open')
  if (rest !== '' && end === 'closed') faults.push(`bytes that are no reply: ${shorten(rest)}`)
  return faults
}

function faultsOfReply({ status, headers, body }: RawReply): string[] {
  const faults: string[] = []
  if (status >= 500) faults.push(`status ${status}: ${shorten(body)}`)
  if (INSIDE.test(body)) faults.push(`shows internal details: ${shorten(body)}`)
  if (status < 400 || body === '') return faults
  const type = headers.get('content-type') ?? ''
  if (!type.startsWith('application/problem+json')) {
    faults.push(`status ${status} as ${type}: ${shorten(body)}`)
  } else if (!isProblem(body, status)) {
    faults.push(`no problem body for status ${status}: ${shorten(body)}`)
  }
  return faults
}

function isProblem(body: string, status: number): boolean {
  try {
    const problem = JSON.parse(Buffer.from(body, 'latin1').toString()) as Record<string, unknown>
    return (
      problem['status'] === status &&
      ['type', 'title', 'code'].every((name) => typeof problem[name] === 'string')
    )
  } catch {
    return false
  }
}

const shorten = (text: string): string => JSON.stringify(text.slice(0, 300))
