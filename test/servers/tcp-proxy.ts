/** A proxy between a client and a server that simulates network faults. */
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'

/** The fault of the next client message that contains a text. */
type Mishap = 'request lost' | 'answer lost' | 'answer cut short'

export interface TcpProxy {
  readonly port: number
  /** The same URL through the proxy. */
  readonly through: (url: string) => string
  /**
   * Waits for the next message with this text (case-insensitive). `request lost`: the connection
   * is cut before the server sees it. `answer lost`: the server gets it, and the connection is cut
   * when the answer arrives, before the client sees any of it. `answer cut short`: the client sees
   * all of the answer except the last byte.
   */
  readonly once: (mishap: Mishap, text: string) => Promise<void>
  /** Cuts every connection. Clients see a reset. */
  readonly cut: () => void
  /** Cuts the connections that are not dead: a reset does not reach the ends of a dead one. */
  readonly cutLiving: () => void
  /**
   * Drops everything from now on, like a network that loses every packet: no connection is closed,
   * and new connections are accepted and get no answer.
   */
  readonly silence: () => void
  /**
   * New connections work again. Old connections stay silent permanently (`dead`: a NAT or firewall
   * has dropped them), or deliver the messages that were held back (`alive`: the packets are sent
   * again).
   */
  readonly resume: (old: 'dead' | 'alive') => void
  /** Delays each message by this time in each direction from now on. */
  readonly delay: (ms: number) => void
  /** The number of open client connections. */
  readonly connections: () => number
  /** The number of client connections so far. */
  readonly accepted: () => number
  readonly close: () => Promise<void>
}

/** One direction of a connection. Keeps the order of messages when some are delayed. */
class Lane {
  readonly #to: Socket
  readonly #network: Network
  #kept: Buffer[] = []
  isDead = false

  constructor(to: Socket, network: Network) {
    this.#to = to
    this.#network = network
  }

  pass(chunk: Buffer): void {
    if (this.isDead) return
    if (this.#network.isSilent) this.#kept.push(chunk)
    else if (this.#network.delayMs === 0) this.#to.write(chunk)
    else setTimeout(() => this.#arrive(chunk), this.#network.delayMs)
  }

  /** A chunk that was in flight when the silence began is lost like all that follow. */
  #arrive(chunk: Buffer): void {
    if (this.#network.isSilent) this.#kept.push(chunk)
    else if (!this.isDead) this.#to.write(chunk)
  }

  resume(): void {
    const kept = this.#kept
    this.#kept = []
    for (const chunk of kept) this.pass(chunk)
  }
}

interface Network {
  isSilent: boolean
  delayMs: number
}

interface Plan {
  readonly mishap: Mishap
  readonly text: string
  readonly done: () => void
}

export async function startTcpProxy(target: { host: string; port: number }): Promise<TcpProxy> {
  const routes = new Set<Route>()
  const network: Network = { isSilent: false, delayMs: 0 }
  const plans = new Plans()
  let accepted = 0

  const listener = createServer((client) => {
    accepted++
    const route = new Route(client, connect(target), network, () => routes.delete(route))
    routes.add(route)
    plans.follow(route)
  })
  await new Promise<void>((resolve) => listener.listen(0, '127.0.0.1', resolve))
  const { port } = listener.address() as AddressInfo
  const cut = () => {
    for (const route of routes) route.cut()
  }
  return {
    port,
    through: (url) => {
      const own = new URL(url)
      own.host = `127.0.0.1:${port}`
      return own.href
    },
    once: (mishap, text) => new Promise((done) => plans.expect({ mishap, text, done })),
    cut,
    cutLiving: () => {
      for (const route of routes) if (!route.isDead) route.cut()
    },
    silence: () => {
      network.isSilent = true
    },
    resume: (old) => {
      network.isSilent = false
      for (const route of routes) route.resume(old)
    },
    delay: (ms) => {
      network.delayMs = ms
    },
    accepted: () => accepted,
    connections: () => [...routes].filter(({ client }) => !client.destroyed).length,
    close: () =>
      new Promise((resolve) => {
        listener.close(() => resolve())
        cut()
      }),
  }
}

/** Holds the fault for the next message of any client. */
class Plans {
  #next: Plan | undefined

  expect(plan: Plan): void {
    this.#next = plan
  }

  follow(route: Route): void {
    let losing: Plan | undefined
    route.client.on('data', (chunk: Buffer) => {
      const met = this.#next !== undefined && includes(chunk, this.#next.text) && this.#next
      if (met) this.#next = undefined
      if (met && met.mishap === 'request lost') {
        route.drop()
        return met.done()
      }
      losing = met || losing
      route.toServer.pass(chunk)
    })
    route.server.on('data', (chunk: Buffer) => {
      const met = losing
      if (met === undefined) return route.toClient.pass(chunk)
      const lose = () => {
        route.drop()
        met.done()
      }
      if (met.mishap === 'answer cut short') route.client.write(chunk.subarray(0, -1), lose)
      else lose()
    })
  }
}

/** A connection from a client to the server. */
class Route {
  readonly client: Socket
  readonly server: Socket
  readonly toServer: Lane
  readonly toClient: Lane
  readonly #network: Network
  readonly #onGone: () => void

  constructor(client: Socket, server: Socket, network: Network, onGone: () => void) {
    this.client = client
    this.server = server
    this.toServer = new Lane(server, network)
    this.toClient = new Lane(client, network)
    this.#network = network
    this.#onGone = onGone
    for (const side of [client, server]) {
      side.setNoDelay(true)
      // Both ends of a connection that was cut report an error, which is expected here.
      side.on('error', () => side.destroy())
      side.on('close', () => this.#closed())
    }
  }

  get isDead(): boolean {
    return this.toServer.isDead
  }

  drop(): void {
    this.client.destroy()
    this.server.destroy()
    this.#onGone()
  }

  cut(): void {
    this.client.resetAndDestroy()
    this.server.destroy()
    this.#onGone()
  }

  resume(old: 'dead' | 'alive'): void {
    for (const lane of [this.toServer, this.toClient]) {
      if (old === 'dead') lane.isDead = true
      else lane.resume()
    }
    this.#closed()
  }

  /** On a silent network, the other end does not learn that this end has closed. */
  #closed(): void {
    const isUnheard = this.#network.isSilent || this.toServer.isDead
    if (!isUnheard && (this.client.destroyed || this.server.destroyed)) this.drop()
  }
}

function includes(chunk: Buffer, text: string): boolean {
  return chunk.toString('latin1').toLowerCase().includes(text.toLowerCase())
}
