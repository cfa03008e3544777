/**
 * A minimal client: sends prepared bytes, and counts replies by their length. A full HTTP client
 * would cost more than the measured server.
 */
import { connect, type Socket } from 'node:net'

export interface Exchange {
  readonly port: number
  readonly connections: number
  /** The time of the last request, by `performance.now()`. */
  readonly until: number
  /** The next request, or `undefined` if there are no more. */
  readonly next: () => string | undefined
}

export interface ExchangeResult {
  readonly statuses: ReadonlyMap<number, number>
  /** The latency of each reply, in ms. */
  readonly waits: readonly number[]
}

/** Sends requests over keep-alive connections, one at a time on each. */
export async function exchange(options: Exchange): Promise<ExchangeResult> {
  const statuses = new Map<number, number>()
  const waits: number[] = []
  const onReply = (status: number, ms: number) => {
    statuses.set(status, (statuses.get(status) ?? 0) + 1)
    waits.push(ms)
  }
  const one = async (): Promise<void> => {
    const socket = connect(options.port, '127.0.0.1')
    socket.setNoDelay(true)
    try {
      await converse(socket, options, onReply)
    } finally {
      socket.destroy()
    }
  }
  await Promise.all(Array.from({ length: options.connections }, one))
  return { statuses, waits }
}

function converse(
  socket: Socket,
  { next, until }: Exchange,
  onReply: (status: number, ms: number) => void,
): Promise<void> {
  return new Promise((resolve, reject) => {
    let pending: Buffer = Buffer.alloc(0)
    let sent = 0
    const sendNext = () => {
      const request = next()
      if (request === undefined) return resolve()
      sent = performance.now()
      socket.write(request, 'latin1')
    }
    socket.on('connect', sendNext)
    socket.on('error', reject)
    socket.on('close', () => reject(new Error('the server has closed the connection')))
    socket.on('data', (chunk: Buffer) => {
      pending = pending.length === 0 ? chunk : Buffer.concat([pending, chunk])
      const length = replyLength(pending)
      if (length === undefined || pending.length < length) return
      const now = performance.now()
      onReply(Number(pending.toString('latin1', 9, 12)), now - sent)
      pending = pending.subarray(length)
      if (now >= until) resolve()
      else sendNext()
    })
  })
}

/** Length of head and body, or `undefined` while the head is incomplete. */
function replyLength(bytes: Buffer): number | undefined {
  const end = bytes.indexOf('\r\n\r\n')
  if (end === -1) return undefined
  const head = bytes.toString('latin1', 0, end)
  const length = /content-length: (\d+)/i.exec(head)?.[1] ?? '0'
  return end + 4 + Number(length)
}
