/** One client, which sends the request of a story until it has a final answer. */
import { setTimeout as sleep } from 'node:timers/promises'
import { seeded, type Random } from '../random.ts'
import type { HttpClient, HttpRequest } from './http-client.ts'
import {
  isAnswered,
  isFinal,
  showsRecord,
  toObject,
  type Answer,
  type Asked,
  type Seen,
} from './seen.ts'
import { otherTenant, tokenOf, type Story } from './story.ts'

export interface ClientNode {
  readonly name: string
  readonly port: number
}

export interface ClientParts {
  readonly http: HttpClient
  readonly nodes: readonly ClientNode[]
  readonly seed: number
  readonly elapsedMs: () => number
  readonly onSeen: (seen: Seen) => void
}

/** Behaviour of a client: during the disruptions, or at the end when it only wants its answer. */
export interface ClientBehaviour {
  /** Disconnects midway, sends concurrent duplicates, and uses a key for another request. */
  readonly careless: boolean
  readonly timeoutMs: { readonly min: number; readonly max: number }
  readonly maxAttempts: number
  readonly backoffMaxMs: number
}

export const CARELESS: ClientBehaviour = {
  careless: true,
  timeoutMs: { min: 300, max: 4_000 },
  // After that the client leaves, and comes back at the end.
  maxAttempts: 10,
  backoffMaxMs: 1_500,
}

export const PATIENT: ClientBehaviour = {
  careless: false,
  timeoutMs: { min: 10_000, max: 10_000 },
  maxAttempts: 1_000,
  backoffMaxMs: 500,
}

/** Concurrent requests for a hot key. */
const HOT_CALLS = { min: 12, max: 32 } as const
/** Rounds of requests for a hot key after it is completed, one after the other. */
const HOT_ROUNDS_AFTER = 3

const BACKOFF_FIRST_MS = 60
const STATUS_ASKS = 4
const STATUS_PAUSE_MAX_MS = 1_000

/** Runs until there is a final answer, the attempts are used up, or `signal` aborts. */
export async function live(
  parts: ClientParts,
  story: Story,
  manners: ClientBehaviour,
  signal: AbortSignal,
): Promise<void> {
  // A client that comes back at the end draws other numbers than at first.
  const random = seeded(parts.seed, `client ${story.number} ${story.seen.length}`)
  const client = new Client({ parts, story, manners, random, signal })
  if (manners.careless && story.isLeft) return client.sendAndLeave()
  await client.untilFinal()
  if (manners.careless && !signal.aborted) await client.lookAround()
}

/** The final answer of the story, if there is one. */
export function finalAnswerOf({ seen }: Pick<Story, 'seen'>): Answer | undefined {
  const last = seen.findLast((one) => isAnswered(one) && isOwn(one.asked) && isFinal(one.outcome))
  return last?.outcome.kind === 'answer' ? last.outcome : undefined
}

function isOwn(asked: Asked): boolean {
  return asked === 'request' || asked === 'status'
}

interface Surroundings {
  readonly parts: ClientParts
  readonly story: Story
  readonly manners: ClientBehaviour
  readonly random: Random
  readonly signal: AbortSignal
}

class Client {
  readonly #parts: ClientParts
  readonly #story: Story
  readonly #manners: ClientBehaviour
  readonly #random: Random
  readonly #signal: AbortSignal

  constructor({ parts, story, manners, random, signal }: Surroundings) {
    this.#parts = parts
    this.#story = story
    this.#manners = manners
    this.#random = random
    this.#signal = signal
  }

  /** Sends the request, and disconnects before or after its answer. */
  async sendAndLeave(): Promise<void> {
    const halfSent = this.#random.chance(0.1)
    const leaves = { afterMs: this.#random.between(0, 150), halfSent }
    await this.#request('request', this.#story.body, leaves)
  }

  async untilFinal(): Promise<void> {
    const { maxAttempts } = this.#manners
    for (let attempt = 0; attempt < maxAttempts && !this.#isDone(); attempt++) {
      await this.#attempt()
      if (this.#isDone()) return
      await this.#askForStatus()
      if (this.#isDone()) return
      if (this.#manners.careless && this.#random.chance(0.15)) await this.#mixUp()
      await this.#backOff(attempt)
    }
  }

  /** Retries, reads, and reuses the key after an answer. */
  async lookAround(): Promise<void> {
    const answer = finalAnswerOf(this.#story)
    if (answer === undefined) return
    const rounds = this.#story.isHot ? HOT_ROUNDS_AFTER : 0
    for (let round = 0; round < rounds; round++) await this.#rush()
    if (this.#random.chance(0.6)) await this.#read(answer)
    if (this.#random.chance(0.4)) await this.#request('request', this.#story.body)
    if (this.#random.chance(0.3)) await this.#mixUp()
    if (this.#random.chance(0.3)) await this.#spy(answer)
  }

  #isDone(): boolean {
    return this.#signal.aborted || finalAnswerOf(this.#story) !== undefined
  }

  async #attempt(): Promise<void> {
    const { body, isHot } = this.#story
    const { careless } = this.#manners
    if (!careless) return this.#request('request', body)
    if (isHot) return this.#rush()
    if (this.#random.chance(0.15)) {
      const times = this.#random.between(2, 3)
      await Promise.all(Array.from({ length: times }, () => this.#request('request', body)))
      return
    }
    const leaves = this.#random.chance(0.12)
      ? { afterMs: this.#random.between(0, 200), halfSent: this.#random.chance(0.3) }
      : undefined
    await this.#request('request', body, leaves)
  }

  /** Sends many concurrent retries, some with another request once the own one is on record. */
  async #rush(): Promise<void> {
    const { body, altered } = this.#story
    const count = this.#random.between(HOT_CALLS.min, HOT_CALLS.max)
    const isKnown = this.#isKnown()
    const sent = Array.from({ length: count }, () =>
      isKnown && this.#random.chance(0.2)
        ? this.#request('altered', altered)
        : this.#request('request', body),
    )
    await Promise.all(sent)
  }

  /** Sends another request under the key, only after the own request is on record. */
  async #mixUp(): Promise<void> {
    if (this.#isKnown()) await this.#request('altered', this.#story.altered)
  }

  #isKnown(): boolean {
    return this.#story.seen.some(
      (one) => isAnswered(one) && isOwn(one.asked) && showsRecord(one.outcome),
    )
  }

  /** Asks at the Location of the last 202. */
  async #askForStatus(): Promise<void> {
    for (let asks = 0; asks < STATUS_ASKS && !this.#isDone(); asks++) {
      const last = this.#story.seen.findLast(({ asked }) => isOwn(asked))?.outcome
      if (last?.kind !== 'answer' || last.status !== 202 || last.location === undefined) return
      const pauseMs = Math.min(last.retryAfterMs ?? 0, STATUS_PAUSE_MAX_MS)
      await this.#pause(pauseMs * (0.3 + 0.7 * this.#random.next()))
      await this.#get('status', last.location, tokenOf(this.#story.tenant))
    }
  }

  async #read(answer: Answer): Promise<void> {
    const path = placeOf(this.#story, answer)
    if (path !== undefined) await this.#get('read', path, tokenOf(this.#story.tenant))
  }

  async #spy(answer: Answer): Promise<void> {
    const { token } = otherTenant(this.#story.tenant)
    const path = placeOf(this.#story, answer)
    if (path !== undefined) await this.#get('foreign_read', path, token)
    if (path !== undefined && this.#story.kind === 'payment') await this.#steal(path, token)
    const status = this.#story.seen.find(
      (one) => isAnswered(one) && one.outcome.status === 202 && one.outcome.location !== undefined,
    )
    if (status?.outcome.kind !== 'answer') return
    await this.#get('foreign_read', status.outcome.location!, token)
  }

  /** Requests a refund of another tenant's payment, under a new key. */
  #steal(path: string, token: string): Promise<void> {
    return this.#send('foreign_refund', {
      method: 'POST',
      path: `${path}/refunds`,
      headers: {
        authorization: `Bearer ${token}`,
        'content-type': 'application/json',
        'idempotency-key': `steal-${this.#story.key}`,
      },
      body: JSON.stringify({ amountCents: 1 }),
    })
  }

  #get(asked: Asked, path: string, token: string): Promise<void> {
    return this.#send(asked, { method: 'GET', path, headers: { authorization: `Bearer ${token}` } })
  }

  #request(asked: Asked, body: object, leaves?: HttpRequest['leaves']): Promise<void> {
    const { path, key, tenant } = this.#story
    return this.#send(asked, {
      method: 'POST',
      path,
      headers: {
        authorization: `Bearer ${tokenOf(tenant)}`,
        'content-type': 'application/json',
        'idempotency-key': key,
      },
      body: JSON.stringify(body),
      leaves,
    })
  }

  async #send(asked: Asked, request: Omit<HttpRequest, 'port' | 'timeoutMs'>): Promise<void> {
    const { http, nodes, elapsedMs, onSeen } = this.#parts
    const { min, max } = this.#manners.timeoutMs
    const node = this.#random.pick(nodes)
    const timeoutMs = this.#random.between(min, max)
    const sentMs = elapsedMs()
    const outcome = await http.send({ ...request, port: node.port, timeoutMs })
    const seen: Seen = { asked, node: node.name, sentMs, endedMs: elapsedMs(), outcome }
    this.#story.seen.push(seen)
    onSeen(seen)
  }

  async #backOff(attempt: number): Promise<void> {
    const longestMs = Math.min(BACKOFF_FIRST_MS * 2 ** attempt, this.#manners.backoffMaxMs)
    await this.#pause(longestMs * (0.5 + 0.5 * this.#random.next()))
  }

  /** Never rejects: an aborted pause ends early. */
  async #pause(ms: number): Promise<void> {
    await sleep(ms, undefined, { signal: this.#signal }).catch(() => undefined)
  }
}

const PLACES = {
  payment: 'payments',
  refund: 'refunds',
  order: 'orders',
  transfer: 'transfers',
} as const

/** The path at which the created resource can be read. */
function placeOf({ kind }: Story, { status, body }: Answer): string | undefined {
  const id = toObject(body)?.[`${kind}Id`]
  const isMade = status >= 200 && status < 300 && typeof id === 'string'
  return isMade ? `/${PLACES[kind]}/${id}` : undefined
}
