import { onTestFinished } from 'vitest'
import { createReconciler, type ReconcilerOptions } from '../../../src/durable/index.ts'
import type { Finding } from '../../../src/durable/operations/operation-contract.ts'
import { hangingEffect, type fairFixture } from '../places/fair-fixture.ts'

type Fixture = ReturnType<typeof fairFixture>

type Reconcile = (tenant: string, signal: AbortSignal) => Finding<string> | Promise<Finding<string>>

/** An operation whose outcome is unknown until the provider is asked. */
export function unknown(name: string, reconcile: Reconcile) {
  const asked: string[] = []
  const { one, ends } = hangingEffect(name, {
    timeoutMs: 10,
    reconcile: ({ request, signal }) => {
      if (!isAsking) return { kind: 'pending' }
      asked.push(request)
      return reconcile(request, signal)
    },
  })
  let isAsking = false
  /** Runs the operation for these tenants. The answer of each run is lost. */
  const lose = async ({ clock, run }: Fixture, tenants: readonly string[]) => {
    for (const tenant of tenants) {
      const lost = run(one, tenant).catch(() => undefined)
      await clock.advanceAsync(20)
      await lost
    }
    for (const end of ends) end()
    isAsking = true
  }
  return { one, asked, lose }
}

export const done = (): Finding<string> => ({ kind: 'done', result: 'paid' })
/** Never answers and ignores its signal. */
export const hang = () => new Promise<never>(() => undefined)
export const hangUntilAborted: Reconcile = (_tenant, signal) =>
  new Promise<never>((_, reject) => {
    signal.addEventListener('abort', () => reject(new Error('aborted')))
  })
export const times = (count: number, tenant: string) => Array.from({ length: count }, () => tenant)

/** Runs a reconciler until the test ends. */
export function start({ engine }: Fixture, options: Omit<ReconcilerOptions, 'engine'>) {
  const reconciler = createReconciler({ engine, ...options })
  const stop = new AbortController()
  onTestFinished(() => stop.abort())
  const ended = reconciler.run(stop.signal)
  return { reconciler, stop: () => stop.abort(), ended }
}
