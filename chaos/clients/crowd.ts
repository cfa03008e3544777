/** All clients of a run: a number of concurrent stories, until the time is over. */
import { setTimeout as sleep } from 'node:timers/promises'
import { seeded } from '../random.ts'
import { CARELESS, finalAnswerOf, live, PATIENT, type ClientParts } from './client.ts'
import { toObject } from './seen.ts'
import { makeStories, type Paid, type Story } from './story.ts'

export interface Crowd {
  /** Every story that was started. */
  readonly stories: readonly Story[]
  readonly finished: () => number
  /** Runs stories until `signal` aborts, and then leaves unfinished ones. */
  readonly run: (signal: AbortSignal) => Promise<void>
  /** Finishes the unfinished stories, until `signal` aborts. */
  readonly finish: (signal: AbortSignal) => Promise<void>
}

export interface CrowdOptions extends ClientParts {
  readonly skus: readonly string[]
  /** Number of concurrent stories. */
  readonly concurrency: number
}

/** Pause between two stories of one client. More clients would only wait for the processor. */
const PAUSE_MAX_MS = 250
/** Number of stories that are finished concurrently. */
const FINISH_CONCURRENCY = 16

export function crowd(options: CrowdOptions): Crowd {
  const stories: Story[] = []
  const paid: Paid[] = []
  const waiting: Story[] = []
  let finished = 0
  let nextNumber = 1

  const take = (): Story => {
    if (waiting.length === 0) {
      const made = makeStories(options.seed, nextNumber, { skus: options.skus, paid })
      nextNumber += made.length
      waiting.push(...made)
      stories.push(...made)
    }
    return waiting.shift()!
  }
  const note = (story: Story) => {
    const answer = finalAnswerOf(story)
    if (answer === undefined) return
    finished++
    if (story.kind !== 'payment' || answer.status !== 201) return
    const paymentId = toObject(answer.body)?.['paymentId']
    const amountCents = Number(story.body['amountCents'])
    if (typeof paymentId === 'string') paid.push({ tenant: story.tenant, paymentId, amountCents })
  }
  const tell = async (number: number, signal: AbortSignal) => {
    const random = seeded(options.seed, `pauses ${number}`)
    while (!signal.aborted) {
      const story = take()
      await live(options, story, CARELESS, signal)
      note(story)
      await sleep(random.between(0, PAUSE_MAX_MS), undefined, { signal }).catch(() => undefined)
    }
  }
  return {
    stories,
    finished: () => finished,
    async run(signal) {
      const numbers = Array.from({ length: options.concurrency }, (_, number) => number)
      await Promise.all(numbers.map((number) => tell(number, signal)))
    },
    async finish(signal) {
      const left = stories.filter((story) => finalAnswerOf(story) === undefined)
      const end = async () => {
        for (let story = left.shift(); story !== undefined; story = left.shift()) {
          await live(options, story, PATIENT, signal)
          note(story)
        }
      }
      await Promise.all(Array.from({ length: FINISH_CONCURRENCY }, end))
    },
  }
}
