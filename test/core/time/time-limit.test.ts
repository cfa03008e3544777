import { expect, it } from 'vitest'
import { TimeLimit, withTimeLimit } from '../../../src/core/time/time-limit.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'

const never = () => new Promise<string>(() => undefined)

it('resolves with the value of a call that ends within the limit', async () => {
  const clock = new FakeClock()
  const call = withTimeLimit({ clock, limitMs: 10 }, async () => 'value')
  await expect(call).resolves.toBe('value')
  expect(clock.pendingTimers).toBe(0)
})

it('rejects at the limit and aborts the signal with the same error', async () => {
  const clock = new FakeClock()
  const limit = new TimeLimit({ clock, limitMs: 10 })
  const call = limit.run(never)
  clock.advance(10)
  await expect(call).rejects.toThrow('no answer within 10 ms')
  expect(limit.signal.reason).toMatchObject({ message: 'no answer within 10 ms' })
})

it('resolves at the limit with the value of onLimit', async () => {
  const clock = new FakeClock()
  const call = withTimeLimit({ clock, limitMs: 10, onLimit: () => 'late' }, never)
  clock.advance(10)
  await expect(call).resolves.toBe('late')
})

it('translates the error of a call, also when the call throws instead of rejecting', async () => {
  const clock = new FakeClock()
  const toError = (error: unknown) => new Error('translated', { cause: error })
  const rejects = withTimeLimit({ clock, limitMs: 10, toError }, () => Promise.reject(new Error()))
  const throws = withTimeLimit({ clock, limitMs: 10, toError }, () => {
    throw new Error('thrown')
  })
  await expect(rejects).rejects.toThrow('translated')
  await expect(throws).rejects.toThrow('translated')
})

it('ends all calls that share a limit with one timer', async () => {
  const clock = new FakeClock()
  const limit = new TimeLimit({ clock, limitMs: 10 })
  const ended = Promise.allSettled([limit.run(never), limit.run(never)])
  expect(clock.pendingTimers).toBe(1)
  clock.advance(10)
  expect((await ended).map(({ status }) => status)).toEqual(['rejected', 'rejected'])
})

it('accepts with afterInput an answer that arrived while the process was busy', async () => {
  const clock = new FakeClock()
  const afterInput: (() => void)[] = []
  clock.soon = (run) => void afterInput.push(run)
  const answers = [Promise.withResolvers<string>(), Promise.withResolvers<string>()] as const
  const outcomes = answers.map(({ promise }) =>
    withTimeLimit({ clock, limitMs: 50, afterInput: true }, () => promise).catch(String),
  )
  clock.advance(50)
  answers[0].resolve('in time')
  expect(await outcomes[0]).toBe('in time')
  for (const run of afterInput) run()
  expect(await outcomes[1]).toBe('Error: no answer within 50 ms')
  expect(clock.pendingTimers).toBe(0)
})
