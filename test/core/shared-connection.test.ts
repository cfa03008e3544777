import { expect, it, onTestFinished, vi } from 'vitest'
import { systemClock } from '../../src/core/clock.ts'
import { SilenceWatch, type SharedConnection } from '../../src/core/shared-connection.ts'

/** A connection that does what it is told, and a clock that stands still. */
function setup() {
  let nowMs = 0
  vi.spyOn(systemClock, 'monotonicMs').mockImplementation(() => nowMs)
  onTestFinished(() => void vi.restoreAllMocks())
  const state = { connection: {}, heard: 0, isWaiting: false }
  const ends: number[] = []
  const shared: SharedConnection = {
    look: () => ({ ...state }),
    end: (silentMs) => ends.push(silentMs),
  }
  const watch = new SilenceWatch(() => [shared])
  /** Something is asked, and not answered until `answer` is called. */
  const ask = (signal?: AbortSignal, silentMs?: number) => {
    const { promise, resolve } = Promise.withResolvers<void>()
    const asked = watch.ask(() => promise, signal, silentMs).catch((error: unknown) => error)
    state.isWaiting = true
    const answer = () => {
      state.heard++
      state.isWaiting = false
      resolve()
      return asked
    }
    return { asked, answer }
  }
  return { state, ends, ask, after: (ms: number) => (nowMs += ms) }
}

const REASON = new Error('no answer')

it('ends a connection that has answered nothing during the whole call', async () => {
  const { ends, ask, after } = setup()
  const givenUp = new AbortController()
  const { asked } = ask(givenUp.signal)
  after(500)
  givenUp.abort(REASON)
  expect(await asked).toBe(REASON)
  expect(ends).toEqual([500])
})

it('leaves a connection alone that has answered another question during the call', async () => {
  const { state, ends, ask, after } = setup()
  const givenUp = new AbortController()
  const { asked } = ask(givenUp.signal)
  after(499)
  state.heard++
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

it('counts no silence while nothing is asked', async () => {
  const { state, ends, ask, after } = setup()
  // Refused by the client itself: nothing was sent, and nothing is answered.
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

it('adds up the silence of calls that are given up one after the other', async () => {
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

it('leaves a connection alone whose call is answered when it is given up', async () => {
  const { state, ends, ask, after } = setup()
  const givenUp = new AbortController()
  await ask(givenUp.signal).answer()
  ask()
  state.isWaiting = true
  after(500)
  givenUp.abort(REASON)
  expect(ends).toEqual([])
})
