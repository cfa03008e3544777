import { createServer, connect, type AddressInfo, type Socket } from 'node:net'
import { Redis, type RedisOptions } from 'ioredis'
import { createClient } from 'redis'
import { onTestFinished } from 'vitest'
import type { RedisServer } from '../servers/redis.ts'

type IoRedisOptions = Pick<
  RedisOptions,
  'username' | 'password' | 'maxRetriesPerRequest' | 'enableReadyCheck' | 'keyPrefix'
>

/** A client of ioredis that lives as long as the test. */
export function connectIoRedis(url: string, options: IoRedisOptions = {}): Redis {
  const client = new Redis(url, options)
  // As every user must: a connection that is cut is an event, too.
  client.on('error', () => undefined)
  onTestFinished(() => client.disconnect())
  return client
}

/** A client of node-redis that lives as long as the test. */
export async function connectNodeRedis(url: string) {
  const client = createClient({ url })
  client.on('error', () => undefined)
  await client.connect()
  onTestFinished(() => {
    if (client.isOpen) client.destroy()
  })
  return client
}

/** A client of either kind, by its name. */
export const CONNECT = {
  ioredis: (url: string) => Promise.resolve(connectIoRedis(url)),
  'node-redis': connectNodeRedis,
} as const

/**
 * What becomes of a message of a client. `cut`: the server gets it, and when it answers, the
 * connection is cut before anybody has read the answer. `answer and cut`: right after.
 */
export type Fate = 'cut' | 'answer and cut'

export interface Proxy {
  readonly url: string
  /** The fate of the next message that matches. */
  readonly onceAbout: (pattern: RegExp, fate: Fate) => void
  /** How often that has happened. */
  readonly cuts: () => number
}

/** Stands between a client and its server, and cuts the connection where it is told to. */
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
    onceAbout: (pattern, fate) => {
      rule = { pattern, fate }
    },
    cuts: () => cuts,
  }
}
