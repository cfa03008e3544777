import { onTestFinished } from 'vitest'
import { createRelay, type RelayMessage, type RelayOptions } from '../../../src/durable/index.ts'
import type { fairFixture } from '../places/fair-fixture.ts'

type Fixture = ReturnType<typeof fairFixture>

/** Runs a relay until the test ends. */
export function start({ engine }: Fixture, options: Omit<RelayOptions, 'engine'>) {
  const relay = createRelay({ engine, random: () => 0.5, ...options })
  const stop = new AbortController()
  onTestFinished(() => stop.abort())
  const ended = relay.run(stop.signal)
  return { relay, stop: () => stop.abort(), ended }
}

/** A handler that ignores its signal and ends only when the test ends it. */
export function hanging() {
  const begun: string[] = []
  const ends: (() => void)[] = []
  const handler = ({ tenant = '' }: RelayMessage) => {
    begun.push(tenant)
    return new Promise<void>((resolve) => ends.push(resolve))
  }
  return { handler, begun, ends }
}

/** A handler that ends at once. */
export function quick() {
  const handled: string[] = []
  const handler = ({ tenant = '' }: RelayMessage) => {
    handled.push(tenant)
  }
  return { handler, handled }
}

/** A handler that ends when its signal aborts. */
export const untilAborted = ({ signal }: RelayMessage) =>
  new Promise<void>((_, reject) => {
    signal.addEventListener('abort', () => reject(new Error('aborted')))
  })

/** Counts claims and their messages. Each claim takes the given time. */
export function watchClaims({ store, clock }: Fixture, lastsMs = 0) {
  const { outbox } = store.durable
  const claim = outbox.claim.bind(outbox)
  const count = { claims: 0, messages: 0 }
  outbox.claim = async (request, signal) => {
    count.claims++
    if (lastsMs > 0) await new Promise<void>((resolve) => void clock.after(lastsMs, resolve))
    const messages = await claim(request, signal)
    count.messages += messages.length
    return messages
  }
  return count
}
