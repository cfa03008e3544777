/**
 * Two sides, measured in turns within one run and judged by the ratio of their medians: a shared
 * machine is too noisy for digits.
 */
import { randomUUID } from 'node:crypto'
import type { Engine } from '../src/core/engine.ts'
import type { Store } from '../src/core/store.ts'

export const IN_FLIGHT = 64
export const FINGERPRINT = `v1:${'f'.repeat(43)}`
export const RESULT = new Uint8Array(200).fill(120)
const SCOPE = { tenant: 'bench', operation: 'POST /payments' }

export interface Contest {
  readonly name: string
  /** What the ratio of ours to theirs should be; absent where it is only to be known. */
  readonly target?: { readonly atLeast: number } | { readonly atMost: number }
  /** What is measured. @default 'a second' */
  readonly unit?: string
  readonly ours: (ms: number) => Promise<number>
  readonly theirs: (ms: number) => Promise<number>
}

export interface Rounds {
  readonly rounds: number
  readonly roundMs: number
}

/** `false` where the target was missed. */
export async function compete(contest: Contest, { rounds, roundMs }: Rounds): Promise<boolean> {
  const { name, target, unit = 'a second', ours, theirs } = contest
  console.log(`\n${name}`)
  const a: number[] = []
  const b: number[] = []
  await ours(roundMs)
  await theirs(roundMs)
  for (let round = 1; round <= rounds; round++) {
    a.push(await ours(roundMs))
    b.push(await theirs(roundMs))
    console.log(
      `  round ${round}/${rounds}: ${shown(a.at(-1)!)} against ${shown(b.at(-1)!)} ${unit}`,
    )
  }
  const ratios = a.map((value, index) => value / b[index]!)
  const ratio = median(a) / median(b)
  const spread = `${Math.min(...ratios).toFixed(2)} to ${Math.max(...ratios).toFixed(2)}`
  console.log(`  medians: ${shown(median(a))} against ${shown(median(b))} ${unit}`)
  const { isReached, text } = judge(ratio, target)
  console.log(`  ratio ${ratio.toFixed(2)} (rounds ${spread})${text}`)
  return isReached
}

function judge(ratio: number, target: Contest['target']): { isReached: boolean; text: string } {
  if (target === undefined) return { isReached: true, text: '' }
  const isReached = 'atLeast' in target ? ratio >= target.atLeast : ratio <= target.atMost
  const wanted = 'atLeast' in target ? `at least ${target.atLeast}` : `at most ${target.atMost}`
  return { isReached, text: `, target ${wanted}: ${isReached ? 'reached' : 'MISSED'}` }
}

/** The same store, one row a call, with so many calls under way at once. */
export function oneByOne(store: Store, flushesMax: number): Store {
  return {
    name: store.name,
    batching: { rowsMax: 1, flushesMax },
    claim: (requests) => store.claim(requests),
    settle: (settlements) => store.settle(settlements),
    renew: (renewals) => store.renew(renewals),
    resolve: (verdicts) => store.resolve(verdicts),
    sweep: (request) => store.sweep(request),
    reap: (request) => store.reap(request),
    read: (ref) => store.read(ref),
    list: (query) => store.list(query),
  }
}

/** First requests under random keys: one claim and one completion each. */
export function pairsPerSecond(engine: Engine, ms: number): Promise<number> {
  return perSecond(ms, async () => {
    const request = { scope: SCOPE, key: randomUUID(), fingerprint: FINGERPRINT }
    const outcome = await engine.run(request, () => RESULT)
    if (outcome.kind !== 'ran') throw new Error(`expected ran, got ${outcome.kind}`)
  })
}

/** Requests under keys that are completed: one claim each, and no write. */
export async function replaysPerSecond(engine: Engine, ms: number): Promise<number> {
  const keys = Array.from({ length: 256 }, () => randomUUID())
  const run = (key: string) =>
    engine.run({ scope: SCOPE, key, fingerprint: FINGERPRINT }, () => RESULT)
  for (const key of keys) await run(key)
  return perSecond(ms, async () => {
    const outcome = await run(keys[Math.floor(Math.random() * keys.length)]!)
    if (outcome.kind !== 'replayed') throw new Error(`expected replayed, got ${outcome.kind}`)
  })
}

/** How often `once` ends in a second, with `IN_FLIGHT` callers that each start again at once. */
export async function perSecond(ms: number, once: () => Promise<void>): Promise<number> {
  const started = performance.now()
  const until = started + ms
  let count = 0
  const caller = async (): Promise<void> => {
    while (performance.now() < until) {
      await once()
      count++
    }
  }
  await Promise.all(Array.from({ length: IN_FLIGHT }, caller))
  return (count * 1000) / (performance.now() - started)
}

export function median(values: readonly number[]): number {
  return values.toSorted((x, y) => x - y)[Math.floor(values.length / 2)]!
}

const shown = (value: number): string =>
  value < 100 ? value.toFixed(2) : Math.round(value).toLocaleString('en')
