/** Stands between a client and a server, and does to their connection what networks do. */
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'

/** What befalls the next message of a client that contains a text. */
type Mishap = 'request lost' | 'answer lost' | 'answer cut short'

export interface TcpProxy {
  readonly port: number
  /** The same URL by way of the proxy. */
  readonly through: (url: string) => string
  /**
   * Waits for the next message with this text (upper and lower case are the same). `request lost`:
   * the connection is cut before the server sees it. `answer lost`: the server gets it, and the
   * connection is cut when its answer comes, of which the client sees nothing. `answer cut short`:
   * the client sees all of that but the last byte.
   */
  readonly once: (mishap: Mishap, text: string) => Promise<void>
  /** Cuts every connection, whatever it is doing. Clients see a reset. */
  readonly cut: () => void
  readonly close: () => Promise<void>
}

interface Plan {
  readonly mishap: Mishap
  readonly text: string
  readonly done: () => void
}

export async function startTcpProxy(target: { host: string; port: number }): Promise<TcpProxy> {
  const pairs = new Set<readonly [Socket, Socket]>()
  let plan: Plan | undefined

  const listener = createServer((client) => {
    const server = connect(target)
    const pair = [client, server] as const
    let losing: Plan | undefined
    const drop = () => {
      client.destroy()
      server.destroy()
      pairs.delete(pair)
    }
    pairs.add(pair)
    for (const side of pair) {
      side.setNoDelay(true)
      // Both ends of a connection that was cut complain; that is what they are here for.
      side.on('error', drop)
      side.on('close', drop)
    }
    client.on('data', (chunk) => {
      const met = plan !== undefined && includes(chunk, plan.text) ? plan : undefined
      if (met !== undefined) plan = undefined
      if (met?.mishap === 'request lost') {
        drop()
        return met.done()
      }
      losing = met ?? losing
      server.write(chunk)
    })
    server.on('data', (chunk) => {
      const met = losing
      if (met === undefined) return void client.write(chunk)
      const lose = () => {
        drop()
        met.done()
      }
      if (met.mishap === 'answer cut short') client.write(chunk.subarray(0, -1), lose)
      else lose()
    })
  })
  await new Promise<void>((resolve) => listener.listen(0, '127.0.0.1', resolve))
  const { port } = listener.address() as AddressInfo
  const cut = () => {
    for (const [client, server] of pairs) {
      client.resetAndDestroy()
      server.destroy()
    }
  }
  return {
    port,
    through: (url) => {
      const own = new URL(url)
      own.host = `127.0.0.1:${port}`
      return own.href
    },
    once: (mishap, text) => new Promise((done) => (plan = { mishap, text, done })),
    cut,
    close: () =>
      new Promise((resolve) => {
        listener.close(() => resolve())
        cut()
      }),
  }
}

function includes(chunk: Buffer, text: string): boolean {
  return chunk.toString('latin1').toLowerCase().includes(text.toLowerCase())
}
