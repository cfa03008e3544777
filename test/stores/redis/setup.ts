import { createServer, connect, type AddressInfo, type Socket } from 'node:net'
import { Redis, type RedisOptions } from 'ioredis'
import { createClient } from 'redis'
import { onTestFinished } from 'vitest'
import type { RedisServer } from '../../servers/redis.ts'

type IoRedisOptions = Pick<
  RedisOptions,
  'username' | 'password' | 'maxRetriesPerRequest' | 'enableReadyCheck' | 'keyPrefix'
>

/** Connects with ioredis. The client is closed when the test ends. */
export function connectIoRedis(url: string, options: IoRedisOptions = {}): Redis {
  const client = new Redis(url, options)
  // Every application needs a listener: a lost connection is an `error` event.
  client.on('error', () => undefined)
  onTestFinished(() => client.disconnect())
  return client
}

/** Connects with node-redis. The client is closed when the test ends. */
export async function connectNodeRedis(url: string) {
  const client = createClient({ url })
  client.on('error', () => undefined)
  await client.connect()
  onTestFinished(() => {
    if (client.isOpen) client.destroy()
  })
  return client
}

/** Connects with a client, by its name. */
export const CONNECT = {
  ioredis: (url: string) => Promise.resolve(connectIoRedis(url)),
  'node-redis': connectNodeRedis,
} as const

/**
 * How the proxy treats a message of a client. `cut`: the server gets the message, and the proxy
 * cuts the connection instead of passing the answer on. `answer and cut`: the proxy passes the
 * answer on and then cuts the connection.
 */
export type Fate = 'cut' | 'answer and cut'

export interface Proxy {
  readonly url: string
  /** Sets the fate of the next message that matches. */
  readonly onNextMatch: (pattern: RegExp, fate: Fate) => void
  /** How many messages have matched. */
  readonly cuts: () => number
}

/** Starts a proxy between a client and its server that can cut connections. */
export async function startProxy(server: Pick<RedisServer, 'port'>): Promise<Proxy> {
  let rule: { readonly pattern: RegExp; readonly fate: Fate } | undefined
  let cuts = 0
  const open = new Set<Socket>()
  const proxy = createServer((client) => {
    const upstream = connect(server.port, '127.0.0.1')
    open.add(client).add(upstream)
    let fate: Fate | undefined
    const end = () => {
      client.destroy()
      upstream.destroy()
    }
    for (const socket of [client, upstream]) socket.on('error', end).on('close', end)
    client.on('data', (chunk: Buffer) => {
      if (rule?.pattern.test(chunk.toString('latin1')) === true) {
        fate = rule.fate
        rule = undefined
        cuts++
      }
      upstream.write(chunk)
    })
    upstream.on('data', (chunk: Buffer) => {
      if (fate === 'cut') end()
      else if (fate === 'answer and cut') client.end(chunk, end)
      else client.write(chunk)
    })
  })
  await new Promise<void>((resolve) => {
    proxy.listen(0, '127.0.0.1', resolve)
  })
  onTestFinished(() => {
    for (const socket of open) socket.destroy()
    proxy.close()
  })
  const { port } = proxy.address() as AddressInfo
  return {
    url: `redis://127.0.0.1:${port}`,
    onNextMatch: (pattern, fate) => {
      rule = { pattern, fate }
    },
    cuts: () => cuts,
  }
}
