/** A server under load, in a separate process: first requests, replays and memory. */
import { randomUUID } from 'node:crypto'
import type { Figures } from '../report/results.ts'
import { quantile } from '../report/statistics.ts'
import { exchange } from './raw-client.ts'
import type { RunningProgram } from './start-program.ts'
import { expectEqual } from './subject.ts'
import { newKeys, oneOf, REPLY_TEXT, REQUEST } from './work.ts'

export interface HttpLoad {
  readonly connections: number
  readonly ms: number
  readonly warmMs: number
}

const BODY = JSON.stringify(REQUEST)
const HEAD =
  'POST /payments HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n' +
  `Content-Length: ${Buffer.byteLength(BODY)}\r\nIdempotency-Key: `

const requestOf = (key: string): string => `${HEAD}${key}\r\n\r\n${BODY}`

/** The maximum number of tries for a seed that the server acknowledged but has not recorded. */
const SEED_TRIES = 40
const SEED_WAIT_MS = 50
const SEED_CONNECTIONS = 16
/** The maximum number of polls until all requests have reached their handlers: one minute. */
const HELD_LOOKS = 3_000

export class HttpSubject {
  readonly #program: RunningProgram
  readonly #port: number
  readonly #forgets: boolean
  #seeded: readonly string[] | undefined

  constructor(program: RunningProgram) {
    const { port, forgets } = program.info as { port: number; forgets: boolean }
    this.#program = program
    this.#port = port
    this.#forgets = forgets
  }

  /** Checks one run and one replay of the same bytes; a bare route runs every time. */
  async prove(isBare: boolean): Promise<void> {
    const key = randomUUID()
    const before = await this.#runs()
    await this.#ask(key)
    expectEqual('runs after the first request', (await this.#runs()) - before, 1)
    if (!isBare) await this.#untilReplayed([key])
    await this.#ask(key)
    expectEqual('runs after the second', (await this.#runs()) - before, isBare ? 2 : 1)
  }

  async first(load: HttpLoad): Promise<Figures> {
    if (this.#forgets) await this.#program.call('reset')
    const before = await this.#runs()
    const { figures, replies } = await this.#load(load, () => requestOf(randomUUID()))
    expectEqual('runs of the work', (await this.#runs()) - before, replies)
    return figures
  }

  async replay(load: HttpLoad): Promise<Figures> {
    return this.#replay(load, await this.#seeds())
  }

  /** Replays of one key. */
  async hot(load: HttpLoad): Promise<Figures> {
    return this.#replay(load, (await this.#seeds()).slice(0, 1))
  }

  async #replay(load: HttpLoad, keys: readonly string[]): Promise<Figures> {
    const requests = keys.map(requestOf)
    const before = await this.#runs()
    const { figures } = await this.#load(load, () => oneOf(requests))
    expectEqual('runs of the work', (await this.#runs()) - before, 0)
    return figures
  }

  /** The memory of one more request in a handler, in bytes. */
  async memory(requests: number): Promise<Figures> {
    const before = (await this.#program.call('heap')) as number
    const started = await this.#runs()
    await this.#program.call('hold')
    let sent = 0
    const over = exchange({
      port: this.#port,
      connections: requests,
      until: Infinity,
      next: () => (sent++ < requests ? requestOf(randomUUID()) : undefined),
    })
    for (let looks = 0; (await this.#runs()) - started < requests; looks++) {
      if (looks === HELD_LOOKS) throw new Error(`only ${await this.#runs()} requests are held`)
      await sleep(20)
    }
    const held = (await this.#program.call('heap')) as number
    await this.#program.call('release')
    expectOnly201((await over).statuses)
    return { bytes: (held - before) / requests }
  }

  async #load(
    { connections, ms, warmMs }: HttpLoad,
    next: () => string,
  ): Promise<{ figures: Figures; replies: number }> {
    const send = async (forMs: number) => {
      const until = performance.now() + forMs
      const result = await exchange({ port: this.#port, connections, until, next })
      expectOnly201(result.statuses)
      return result.waits
    }
    const warm = await send(warmMs)
    const cpu = await this.#cpu()
    const started = performance.now()
    const waits = await send(ms)
    const seconds = (performance.now() - started) / 1000
    const figures = {
      rate: waits.length / seconds,
      p50: quantile(waits, 0.5),
      p99: quantile(waits, 0.99),
      cpu: ((await this.#cpu()) - cpu) / waits.length,
    }
    return { figures, replies: warm.length + waits.length }
  }

  /** Keys that are completed and recorded. */
  async #seeds(): Promise<readonly string[]> {
    if (this.#seeded !== undefined && !this.#forgets) return this.#seeded
    const keys = newKeys()
    await this.#post(keys)
    await this.#untilReplayed(keys)
    this.#seeded = keys
    return keys
  }

  /** Some peers acknowledge first and record later: until then a retry is refused, or runs. */
  async #untilReplayed(keys: readonly string[]): Promise<void> {
    for (let tries = 1; ; tries++) {
      const before = await this.#runs()
      const statuses = await this.#post(keys)
      const isKnown = statuses.size === 1 && statuses.has(201)
      if (isKnown && (await this.#runs()) === before) return
      if (tries === SEED_TRIES) {
        throw new Error(`replays fail: ${JSON.stringify([...statuses])}`)
      }
      await sleep(SEED_WAIT_MS)
    }
  }

  async #post(keys: readonly string[]): Promise<ReadonlyMap<number, number>> {
    const left = [...keys]
    const next = () => {
      const key = left.pop()
      return key === undefined ? undefined : requestOf(key)
    }
    const connections = Math.min(SEED_CONNECTIONS, keys.length)
    const sending = { port: this.#port, connections, until: Infinity, next }
    return (await exchange(sending)).statuses
  }

  async #ask(key: string): Promise<void> {
    const reply = await fetch(`http://127.0.0.1:${this.#port}/payments`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'idempotency-key': key },
      body: BODY,
    })
    const text = await reply.text()
    expectEqual('the status', reply.status, 201)
    expectEqual('the reply', text, REPLY_TEXT)
  }

  async #runs(): Promise<number> {
    return (await this.#program.call('runs')) as number
  }

  /** CPU time of the server, in µs. */
  async #cpu(): Promise<number> {
    return (await this.#program.call('cpu')) as number
  }
}

function expectOnly201(statuses: ReadonlyMap<number, number>): void {
  const others = [...statuses].filter(([status]) => status !== 201)
  if (others.length > 0) throw new Error(`unexpected statuses ${JSON.stringify(others)}`)
}

function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms))
}
