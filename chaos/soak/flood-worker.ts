/**
 * A thread that sends payments under distinct keys at the highest possible rate: prepared bytes,
 * several pipelined requests on each connection, and replies that are only counted.
 */
import { connect, type Socket } from 'node:net'
import { parentPort, workerData } from 'node:worker_threads'
import { draftOf, toBytes, withHeader } from './draft.ts'

export interface FloodPlan {
  readonly port: number
  readonly token: string
  readonly connections: number
  /** Pipelined requests on each connection. */
  readonly depth: number
  /** Distinguishes its keys from those of another flood. At most 20 characters. */
  readonly name: string
}

export interface FloodCount {
  readonly sent: number
  readonly closed: number
  readonly statuses: Readonly<Record<string, number>>
  /** Replies of status 429 with a Retry-After. */
  readonly retryAfters: number
}

const plan = workerData as FloodPlan
const KEY_DIGITS = 9
const STATUS_LINE = 'HTTP/1.1 '
const STATUS_END = STATUS_LINE.length + 3

const key = `${plan.name}-${'0'.repeat(KEY_DIGITS)}`
const body = { customerId: 'cus_flood', amountCents: 100, currency: 'USD' }
const template = toBytes(
  withHeader(draftOf('/payments', body, key, plan.token), 'Connection', undefined),
)
const keyAt = template.indexOf(key) + key.length - KEY_DIGITS

let sent = 0
let closed = 0
let retryAfters = 0
let isStopped = false
const statuses: Record<string, number> = {}
const sockets = new Set<Socket>()

parentPort!.on('message', () => {
  isStopped = true
  for (const socket of sockets) socket.destroy()
  const count: FloodCount = { sent, closed, statuses, retryAfters }
  // oxlint-disable-next-line unicorn/require-post-message-target-origin -- It is no window.
  parentPort!.postMessage(count)
  parentPort!.close()
})
for (let n = 0; n < plan.connections; n++) open()

/** Connects, and reconnects when the server has closed the connection. */
function open(): void {
  const socket = connect({ port: plan.port, host: '127.0.0.1', noDelay: true })
  sockets.add(socket)
  let tail = ''
  socket.once('connect', () => send(socket, plan.depth))
  socket.on('data', (chunk) => {
    const text = tail + chunk.toString('latin1')
    const { replies, read } = count(text)
    // A status line or header may continue in the next chunk.
    tail = text.slice(Math.max(read, text.length - STATUS_END))
    send(socket, replies)
  })
  socket.on('error', () => undefined)
  socket.once('close', () => {
    sockets.delete(socket)
    if (isStopped) return
    closed++
    setTimeout(() => isStopped || open(), 10)
  })
}

/** Counts status lines, and returns the end of the last one. Bodies contain no such text. */
function count(text: string): { replies: number; read: number } {
  let replies = 0
  let read = 0
  for (let at = text.indexOf(STATUS_LINE); at !== -1; at = text.indexOf(STATUS_LINE, read)) {
    if (text.length < at + STATUS_END) break
    read = at + STATUS_END
    const status = text.slice(at + STATUS_LINE.length, read)
    statuses[status] = (statuses[status] ?? 0) + 1
    if (status === '429') {
      const head = text.slice(read, text.indexOf('\r\n\r\n', read))
      if (/\r\nretry-after: \d/i.test(head)) retryAfters++
    }
    replies++
  }
  return { replies, read }
}

function send(socket: Socket, requests: number): void {
  if (requests === 0 || !socket.writable) return
  const bytes = Buffer.allocUnsafe(template.length * requests)
  for (let n = 0; n < requests; n++) {
    template.copy(bytes, n * template.length)
    bytes.write(`${sent++}`.padStart(KEY_DIGITS, '0'), n * template.length + keyAt, 'latin1')
  }
  socket.write(bytes)
}
