/** What the tenants beside the bad neighbours waited for, and how two runs compare. Pure. */
import { ENDLESS_TOPIC, FLOOD, HANGING, HANGING_OPERATION } from '../neighbours/names.ts'
import { WAIT_KINDS, type Facts, type Wait, type WaitKind } from './facts.ts'

/** In milliseconds. */
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

/** How many times as long the others may wait when the neighbours are there. */
export const TIMES_MAX = 2
/**
 * Differences below this do not count: workers and relays look for work once a second, and the
 * clock of a SQLite file is off by up to half a second.
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
 * Both have a line for every kind. Where the others were served nothing at all beside the
 * neighbours, they still wait.
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

/** What the neighbours did, and what of the others began or ended while they did it. */
export function neighboursIn(facts: Facts): Record<string, number> {
  const { accepted, records, messages, waits } = facts
  const flood = waits.filter(({ tenant }) => tenant === FLOOD.name)
  const fromMs = flood.reduce((first, wait) => Math.min(first, wait.fromMs), Infinity)
  const untilMs = flood.reduce((last, wait) => Math.max(last, wait.untilMs), 0)
  const meanwhile = (kind: WaitKind) =>
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
    'accepted of the flood': accepted.length,
    'hanging operations': hanging.length,
    'of these begun': hanging.filter(({ attempt }) => attempt > 0).length,
    'of these unknown': hanging.filter(({ state }) => state === 'unknown').length,
    'endless messages': endless.length,
    'times these were begun': endless.reduce((sum, { attempt }) => sum + attempt, 0),
    'started of others meanwhile': meanwhile('accepted work'),
    'relayed of others meanwhile': meanwhile('messages'),
    'found out of others meanwhile': meanwhile('unknown outcomes'),
  }
}
