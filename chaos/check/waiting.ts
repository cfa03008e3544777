/** How long the tenants beside the bad neighbours waited, and how two runs compare. Pure. */
import { ENDLESS_TOPIC, FLOOD, HANGING, HANGING_OPERATION } from '../neighbours/names.ts'
import { WAIT_KINDS, type Facts, type Wait, type WaitKind } from './facts.ts'

/** Times in milliseconds. */
export interface Waiting {
  readonly kind: WaitKind
  readonly count: number
  readonly p50: number
  readonly p99: number
  readonly max: number
}

export interface ComparedWaiting {
  readonly kind: WaitKind
  readonly without: Waiting
  readonly with: Waiting
  readonly ok: boolean
}

/** The maximum factor by which bad neighbours may extend the waits of the others. */
export const TIMES_MAX = 2
/**
 * Smaller differences do not count: workers and relays poll once a second, and the clock of a
 * SQLite file has an error of up to half a second.
 */
export const FLOOR_MS = 1_000

export function waitingOf(waits: readonly Wait[]): Waiting[] {
  const others = waits.filter(({ tenant }) => tenant !== FLOOD.name && tenant !== HANGING.name)
  return WAIT_KINDS.map((kind) => {
    const ms = others
      .filter((wait) => wait.kind === kind)
      .map(({ fromMs, untilMs }) => Math.max(0, untilMs - fromMs))
      .toSorted((one, other) => one - other)
    const rank = (part: number) => Math.round(ms[Math.ceil(ms.length * part) - 1] ?? 0)
    return { kind, count: ms.length, p50: rank(0.5), p99: rank(0.99), max: rank(1) }
  })
}

/**
 * Both have a line for every kind. If no work of the others was served beside the neighbours, it
 * counts as still waiting.
 */
export function compareWaiting(
  without: readonly Waiting[],
  withThem: readonly Waiting[],
): ComparedWaiting[] {
  return without.map((before) => {
    const after = withThem.find(({ kind }) => kind === before.kind)!
    const limitMs = Math.max(TIMES_MAX * before.p99, before.p99 + FLOOR_MS)
    const isServed = after.count > 0 || before.count === 0
    return { kind: before.kind, without: before, with: after, ok: isServed && after.p99 <= limitMs }
  })
}

/** Counts the work of the neighbours, and the work of the others during the flood. */
export function neighboursIn(facts: Facts): Record<string, number> {
  const { accepted, records, messages, waits } = facts
  const flood = waits.filter(({ tenant }) => tenant === FLOOD.name)
  const fromMs = flood.reduce((first, wait) => Math.min(first, wait.fromMs), Infinity)
  const untilMs = flood.reduce((last, wait) => Math.max(last, wait.untilMs), 0)
  const duringFlood = (kind: WaitKind) =>
    waits.filter(
      (wait) =>
        wait.kind === kind &&
        wait.tenant !== FLOOD.name &&
        wait.untilMs >= fromMs &&
        wait.untilMs <= untilMs,
    ).length
  const hanging = records.filter(({ operation }) => operation === HANGING_OPERATION)
  const endless = messages.filter(({ topic }) => topic === ENDLESS_TOPIC)
  return {
    'accepted requests of the flood': accepted.length,
    'hanging operations': hanging.length,
    'hanging operations started': hanging.filter(({ attempt }) => attempt > 0).length,
    'hanging operations unknown': hanging.filter(({ state }) => state === 'unknown').length,
    'endless messages': endless.length,
    'attempts of endless messages': endless.reduce((sum, { attempt }) => sum + attempt, 0),
    'others started during the flood': duringFlood('accepted work'),
    'others relayed during the flood': duringFlood('messages'),
    'others reconciled during the flood': duringFlood('unknown outcomes'),
  }
}
