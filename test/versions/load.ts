/** Clients that send each key to several nodes, at the same time and again later. */
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
/** Limits the retries of a key that is in progress. A node answers in milliseconds. */
const RETRIES_MAX = 1_000

/** Sends new keys to `nodes` until `stop()`. Nodes may be added and removed while it runs. */
export class Load {
  readonly answers: Answer[] = []
  readonly keys: string[] = []
  readonly nodes: ServiceNode[] = []
  readonly #waiting = new Set<() => void>()
  readonly #running = new Map<ServiceNode, Set<Promise<unknown>>>()
  #finished = 0
  #isOver = false
  #clients: Promise<unknown> = Promise.resolve()

  start(): void {
    this.#clients = Promise.all(Array.from({ length: CLIENTS }, () => this.#client()))
    // Wakes `more()`. Both `stop()` and `more()` reject with the error.
    this.#clients.catch(() => this.#wake())
  }

  async stop(): Promise<void> {
    this.#isOver = true
    await this.#clients
  }

  /** Resolves when `count` more keys have their replies. */
  async more(count: number): Promise<void> {
    const target = this.#finished + count
    const reached = new Promise<void>((resolve) => {
      const check = () => {
        if (this.#finished < target && !this.#isOver) return
        this.#waiting.delete(check)
        resolve()
      }
      this.#waiting.add(check)
    })
    await Promise.race([reached, this.#clients.then(() => reached)])
  }

  /** Removes a node like a load balancer: sends no new requests, and waits for running ones. */
  async takeOut(node: ServiceNode): Promise<void> {
    this.nodes.splice(this.nodes.indexOf(node), 1)
    await Promise.all([...(this.#running.get(node) ?? [])])
  }

  /** Sends one request for a new or a known key. */
  async send(key: string, node: ServiceNode): Promise<Answer> {
    const { version } = node
    const sent = post(node.port, key)
    const running = this.#running.get(node) ?? new Set()
    this.#running.set(node, running.add(sent))
    const { status, body } = await sent.finally(() => running.delete(sent))
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
      for (let retries = 0; !isDone; retries++) {
        if (retries === RETRIES_MAX)
          throw new Error(`key ${key} has no reply after ${retries} retries`)
        isDone = isReply(await this.send(key, this.#node(retries)))
      }
      // Sends an earlier key again, which either version may have answered.
      await this.send(this.keys[Math.floor(number / 2)]!, this.#node(number + 1))
      this.#finished++
      this.#wake()
    }
  }

  #node(number: number): ServiceNode {
    return this.nodes[number % this.nodes.length]!
  }

  #wake(): void {
    for (const check of this.#waiting) check()
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
