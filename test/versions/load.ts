/** Clients that send every key to several nodes, at once and again later. */
import { request } from 'node:http'
import type { ServiceNode, Version } from './installed.ts'

export interface Answer {
  readonly key: string
  readonly version: Version
  readonly status: number
  readonly body: string
}

const CLIENTS = 4
const DUPLICATES = 3
/** A key that is still in progress is asked for again; a node answers in milliseconds. */
const ASKS_MAX = 1_000

/** Sends new keys to `nodes` until it is stopped. Nodes may be added and taken out meanwhile. */
export class Load {
  readonly answers: Answer[] = []
  readonly keys: string[] = []
  readonly nodes: ServiceNode[] = []
  readonly #waiting = new Set<() => void>()
  readonly #underWay = new Map<ServiceNode, Set<Promise<unknown>>>()
  #finished = 0
  #isOver = false
  #clients: Promise<unknown> = Promise.resolve()

  start(): void {
    this.#clients = Promise.all(Array.from({ length: CLIENTS }, () => this.#client()))
    // Told by `stop` and by `more`, whichever is awaited.
    this.#clients.catch(() => this.#wake())
  }

  async stop(): Promise<void> {
    this.#isOver = true
    await this.#clients
  }

  /** Resolves when `count` keys more have got their replies. */
  async more(count: number): Promise<void> {
    const target = this.#finished + count
    const reached = new Promise<void>((resolve) => {
      const look = () => {
        if (this.#finished < target && !this.#isOver) return
        this.#waiting.delete(look)
        resolve()
      }
      this.#waiting.add(look)
    })
    await Promise.race([reached, this.#clients.then(() => reached)])
  }

  /** As a load balancer does it: no new requests, and those under way come to their end. */
  async takeOut(node: ServiceNode): Promise<void> {
    this.nodes.splice(this.nodes.indexOf(node), 1)
    await Promise.all([...(this.#underWay.get(node) ?? [])])
  }

  /** One request for a key that it has, or a new one. */
  async send(key: string, node: ServiceNode): Promise<Answer> {
    const { version } = node
    const sent = post(node.port, key)
    const underWay = this.#underWay.get(node) ?? new Set()
    this.#underWay.set(node, underWay.add(sent))
    const { status, body } = await sent.finally(() => underWay.delete(sent))
    const answer = { key, version, status, body }
    this.answers.push(answer)
    return answer
  }

  async #client(): Promise<void> {
    while (!this.#isOver) {
      const number = this.keys.length
      const key = `${number % 2 === 0 ? 'plain' : 'transaction'}-${number}`
      this.keys.push(key)
      const first = Array.from({ length: DUPLICATES }, (_, n) =>
        this.send(key, this.#node(number + n)),
      )
      let isDone = (await Promise.all(first)).some(isReply)
      for (let asks = 0; !isDone; asks++) {
        if (asks === ASKS_MAX) throw new Error(`key ${key} has no reply after ${asks} requests`)
        isDone = isReply(await this.send(key, this.#node(asks)))
      }
      // One that was answered before, by whichever version that was.
      await this.send(this.keys[Math.floor(number / 2)]!, this.#node(number + 1))
      this.#finished++
      this.#wake()
    }
  }

  #node(number: number): ServiceNode {
    return this.nodes[number % this.nodes.length]!
  }

  #wake(): void {
    for (const look of this.#waiting) look()
  }
}

const isReply = ({ status }: Answer) => status === 201

function post(port: number, key: string): Promise<{ status: number; body: string }> {
  const [path] = key.split('-')
  const body = JSON.stringify({ amount: 100, key })
  return new Promise((resolve, reject) => {
    const sent = request(
      {
        host: '127.0.0.1',
        port,
        path: `/${path}`,
        method: 'POST',
        agent: false,
        headers: { 'content-type': 'application/json', 'idempotency-key': key },
      },
      (response) => {
        const chunks: Buffer[] = []
        response.on('data', (chunk: Buffer) => chunks.push(chunk))
        response.on('error', reject)
        response.on('end', () =>
          resolve({ status: response.statusCode ?? 0, body: Buffer.concat(chunks).toString() }),
        )
      },
    )
    sent.on('error', reject)
    sent.end(body)
  })
}
