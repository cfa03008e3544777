/** The tenant whose latencies are measured: sequential payments, each checked. */
import { Agent, request, type IncomingMessage } from 'node:http'
import { createHistogram } from 'node:perf_hooks'
import { text } from 'node:stream/consumers'
import { TOKENS } from './draft.ts'

export interface Latencies {
  readonly count: number
  readonly p50Ms: number
  readonly p99Ms: number
  readonly maxMs: number
}

export interface WatchedTenant {
  /** The latencies since the last call. */
  readonly take: () => Latencies
  /** The first wrong answers, limited in number. */
  readonly faults: readonly string[]
  /** Stops sending, and waits for the last answer. */
  readonly stop: () => Promise<void>
}

const FAULTS_MAX = 20
const US_PER_MS = 1000
/** A longer answer time is a fault. */
const ANSWER_MS_MAX = 30_000

let tenants = 0

export function watchTenant(port: number, pauseMs = 10): WatchedTenant {
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  // A histogram has a fixed size for any duration.
  const histogram = createHistogram()
  const faults: string[] = []
  const name = `watched-tenant-${process.pid}-${tenants++}`
  const stopped = new AbortController()
  const note = (fault: string) => {
    if (faults.length < FAULTS_MAX) faults.push(fault)
  }

  const run = async () => {
    for (let n = 0; !stopped.signal.aborted; n++) {
      const fault = await payTimed({ port, agent, key: `${name}-${n}`, cents: 1 + (n % 5000) })
      if (fault !== undefined) note(fault)
      await new Promise((resolve) => setTimeout(resolve, pauseMs))
    }
    agent.destroy()
  }
  const payTimed = async (payment: Payment) => {
    const startMs = performance.now()
    const answer = await pay(payment).catch((error: unknown) => String(error))
    histogram.record(Math.max(1, Math.round((performance.now() - startMs) * US_PER_MS)))
    return typeof answer === 'string' ? answer : faultOf(answer, payment)
  }
  const running = run()
  return {
    faults,
    take: () => {
      const { count, max } = histogram
      const [p50, p99] = [histogram.percentile(50), histogram.percentile(99)]
      histogram.reset()
      const ms = (us: number) => (count === 0 ? 0 : us / US_PER_MS)
      return { count, p50Ms: ms(p50), p99Ms: ms(p99), maxMs: ms(max) }
    },
    stop: () => {
      stopped.abort()
      return running
    },
  }
}

interface Payment {
  readonly port: number
  readonly agent: Agent
  readonly key: string
  readonly cents: number
}

interface Answer {
  readonly status: number
  readonly isReplay: boolean
  readonly body: string
}

function pay({ port, agent, key, cents }: Payment): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const headers = {
      Authorization: `Bearer ${TOKENS.b}`,
      'Idempotency-Key': key,
      'Content-Type': 'application/json',
    }
    const target = { host: '127.0.0.1', port, method: 'POST', path: '/payments', agent, headers }
    const req = request({ ...target, timeout: ANSWER_MS_MAX }, (res: IncomingMessage) => {
      text(res).then((body) => {
        const isReplay = res.headers['idempotent-replayed'] !== undefined
        resolve({ status: res.statusCode ?? 0, isReplay, body })
      }, reject)
    })
    req.once('error', reject)
    req.once('timeout', () => req.destroy(new Error(`no answer within ${ANSWER_MS_MAX} ms`)))
    req.end(JSON.stringify({ customerId: 'cus_watched', amountCents: cents, currency: 'USD' }))
  })
}

function faultOf({ status, isReplay, body }: Answer, { key }: Payment): string | undefined {
  if (status !== 201) return `${key}: status ${status}: ${body.slice(0, 200)}`
  if (isReplay) return `${key}: a new key was answered with a replay`
  return undefined
}
