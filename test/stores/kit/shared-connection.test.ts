import { expect, it, onTestFinished, vi } from 'vitest'
import { systemClock } from '../../../src/core/time/clock.ts'
import { SilenceWatch, type SharedConnection } from '../../../src/stores/kit/shared-connection.ts'

/** A connection that the test controls, and a fake clock. */
function setup() {
  let nowMs = 0
  vi.spyOn(systemClock, 'monotonicMs').mockImplementation(() => nowMs)
  onTestFinished(() => void vi.restoreAllMocks())
  const state = { connection: {}, answers: 0, isWaiting: false }
  const ends: number[] = []
  const shared: SharedConnection = {
    snapshot: () => ({ ...state }),
    end: (silentMs) => ends.push(silentMs),
  }
  const watch = new SilenceWatch(() => [shared])
  /** Sends a query that is not answered until `answer` is called. */
  const ask = (signal?: AbortSignal, silentMs?: number) => {
    const { promise, resolve } = Promise.withResolvers<void>()
    const asked = watch.ask(() => promise, signal, silentMs).catch((error: unknown) => error)
    state.isWaiting = true
    const answer = () => {
      state.answers++
      state.isWaiting = false
      resolve()
      return asked
    }
    return { asked, answer }
  }
  return { state, ends, ask, after: (ms: number) => (nowMs += ms) }
}

const REASON = new Error('no answer')

it('closes a connection that has answered nothing during the whole call', async () => {
  const { ends, ask, after } = setup()
  const givenUp = new AbortController()
  const { asked } = ask(givenUp.signal)
  after(500)
  givenUp.abort(REASON)
  expect(await asked).toBe(REASON)
  expect(ends).toEqual([500])
})

it('keeps a connection that has answered another query during the call', async () => {
  const { state, ends, ask, after } = setup()
  const givenUp = new AbortController()
  const { asked } = ask(givenUp.signal)
  after(499)
  state.answers++
  after(1)
  givenUp.abort(REASON)
  expect(await asked).toBe(REASON)
  expect(ends).toEqual([])
})

it('counts the silence of a call from its last answer on', async () => {
  const { ends, ask, after } = setup()
  const givenUp = new AbortController()
  const first = ask(givenUp.signal)
  after(400)
  await first.answer()
  const second = ask(givenUp.signal)
  after(100)
  givenUp.abort(REASON)
  expect(await second.asked).toBe(REASON)
  expect(ends).toEqual([])
})

it('counts no silence while no query is in progress', async () => {
  const { state, ends, ask, after } = setup()
  // Refused by the client: nothing was sent, so nothing is answered.
  const refused = ask(new AbortController().signal, 5_000)
  state.isWaiting = false
  after(3_600_000)
  const givenUp = new AbortController()
  const { asked } = ask(givenUp.signal, 5_000)
  after(50)
  givenUp.abort(REASON)
  expect(await asked).toBe(REASON)
  expect(ends).toEqual([])
  void refused
})

it('adds up the silence of calls that time out one after the other', async () => {
  const { ends, ask, after } = setup()
  for (const expected of [[], [5_000]]) {
    const givenUp = new AbortController()
    const { asked } = ask(givenUp.signal, 5_000)
    after(50)
    givenUp.abort(REASON)
    expect(await asked).toBe(REASON)
    expect(ends).toEqual(expected)
    after(4_950)
  }
})

it('keeps a connection whose call is answered when it times out', async () => {
  const { state, ends, ask, after } = setup()
  const givenUp = new AbortController()
  await ask(givenUp.signal).answer()
  ask()
  state.isWaiting = true
  after(500)
  givenUp.abort(REASON)
  expect(ends).toEqual([])
})
