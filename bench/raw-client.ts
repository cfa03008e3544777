/**
 * The cheapest client there is: prepared bytes out, replies counted by their length. A full HTTP
 * client would cost more than the server it measures.
 */
import { connect, type Socket } from 'node:net'

export interface Load {
  readonly port: number
  readonly connections: number
  readonly ms: number
  /** The bytes of the next request. */
  readonly next: () => Buffer
}

export interface LoadResult {
  readonly perSecond: number
  readonly statuses: ReadonlyMap<number, number>
}

/** Sends requests over keep-alive connections, one at a time on each, for a while. */
export async function load({ port, connections, ms, next }: Load): Promise<LoadResult> {
  const statuses = new Map<number, number>()
  const started = performance.now()
  const until = started + ms
  const one = async (): Promise<void> => {
    const socket = connect(port, '127.0.0.1')
    socket.setNoDelay(true)
    try {
      await exchange(socket, next, until, (status) => {
        statuses.set(status, (statuses.get(status) ?? 0) + 1)
      })
    } finally {
      socket.destroy()
    }
  }
  await Promise.all(Array.from({ length: connections }, one))
  const count = [...statuses.values()].reduce((sum, n) => sum + n, 0)
  return { perSecond: (count * 1000) / (performance.now() - started), statuses }
}

function exchange(
  socket: Socket,
  next: () => Buffer,
  until: number,
  onReply: (status: number) => void,
): Promise<void> {
  return new Promise((resolve, reject) => {
    let pending = Buffer.alloc(0)
    socket.on('connect', () => socket.write(next()))
    socket.on('error', reject)
    socket.on('close', () => resolve())
    socket.on('data', (chunk) => {
      pending = pending.length === 0 ? chunk : Buffer.concat([pending, chunk])
      const length = replyLength(pending)
      if (length === undefined || pending.length < length) return
      onReply(Number(pending.toString('latin1', 9, 12)))
      pending = pending.subarray(length)
      if (performance.now() >= until) resolve()
      else socket.write(next())
    })
  })
}

/** Head and body, or `undefined` while the head is not whole. */
function replyLength(bytes: Buffer): number | undefined {
  const end = bytes.indexOf('\r\n\r\n')
  if (end === -1) return undefined
  const head = bytes.toString('latin1', 0, end)
  const length = /content-length: (\d+)/i.exec(head)?.[1] ?? '0'
  return end + 4 + Number(length)
}
