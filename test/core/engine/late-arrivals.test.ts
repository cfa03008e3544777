/** Calls that timed out, and take effect later. */
import { expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { OutcomeUnknownError } from '../../../src/core/errors.ts'
import type { Store } from '../../../src/core/store/store.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { wrapStore } from '../../adapters/run-express.ts'

const bytes = (text: string) => new TextEncoder().encode(text)
const text = (result: Uint8Array | undefined) => new TextDecoder().decode(result)
const request = { scope: { tenant: 't', operation: 'pay' }, key: 'k', fingerprint: 'f' }
const quiet = { sweepEveryMs: 0, reapEveryMs: 0 } as const

it('returns no result of a second transaction when the first has committed late', async () => {
  const clock = new FakeClock()
  const records = memoryStore({ clock })
  let lateCommit: (() => Promise<unknown>) | undefined
  const transaction: NonNullable<Store['transaction']> = async (lease, work) => {
    const completion = await work({})
    const commit = async () =>
      (await records.settle([{ kind: 'complete', lease, ...completion }]))[0]!
    if (lateCommit !== undefined) return commit()
    lateCommit = commit
    throw new Error('the connection broke before the commit was answered')
  }
  const store = wrapStore(records, { transaction })
  const engine = createEngine({ store, clock, onLapse: 'rerun', ...quiet })
  const running = engine.run(request, async (context) => {
    await context.transaction(() => bytes('first')).catch(() => undefined)
    return context.transaction(() => bytes('second'))
  })
  await expect(running).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
  expect((await engine.read(request))?.state).toBe('unknown')
  // The commit was considered failed, and arrives now: it decides the outcome.
  await lateCommit!()
  expect(text((await engine.read(request))?.result)).toBe('first')
})

it('does not apply a verdict on an earlier attempt to a later one', async () => {
  const clock = new FakeClock()
  const engine = createEngine({ store: memoryStore({ clock }), clock, ...quiet })
  const lost = () => {
    throw new OutcomeUnknownError()
  }
  await engine.run(request, lost).catch(() => undefined)
  const { recordId, attempt } = (await engine.read(request))!
  // Attempt 1 had no effect. The operator's call times out and is sent again.
  const resolve = () => engine.resolve({ recordId, attempt }, { kind: 'failed_retryable' })
  await resolve()
  await engine.run(request, lost).catch(() => undefined)
  // The first call arrives now. It would release attempt 2, whose outcome is not known.
  expect(await resolve()).toEqual({ kind: 'other_attempt', attempt: 2 })
  expect(await engine.read(request)).toMatchObject({ attempt: 2, state: 'unknown' })
})
