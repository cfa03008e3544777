/** What came out of a run: for people on the terminal, for machines and for later in a file. */
import { mkdirSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import type { ChaosOptions } from './arguments.ts'
import { VIOLATION_KINDS, type Facts, type Violation } from './check/facts.ts'
import { neighboursIn, waitingOf, type Waiting } from './check/waiting.ts'
import { summaryOf } from './clients/seen.ts'
import type { Story } from './clients/story.ts'
import { describeWaiting, type Comparison } from './comparison.ts'

export interface RunResult {
  readonly options: ChaosOptions
  readonly violations: readonly Violation[]
  readonly facts: Facts
  readonly seconds: { readonly mischief: number; readonly healing: number }
  readonly requests: number
  readonly mischief: Readonly<Record<string, number>>
  readonly faults: Readonly<Record<string, number>>
}

export interface Sample extends Violation {
  readonly key?: string | undefined
  /** What its client saw, line by line. */
  readonly history: readonly string[]
}

export interface Report {
  readonly store: string
  readonly seed: number
  readonly plant: string | undefined
  readonly ok: boolean
  readonly startedAt: string
  readonly seconds: RunResult['seconds']
  readonly done: Readonly<Record<string, number>>
  /** What bad neighbours did; empty where there were none. */
  readonly neighbours: Readonly<Record<string, number>>
  /** How long the other tenants waited. */
  readonly waiting: readonly Waiting[]
  /** What clients saw, and how often. */
  readonly answers: Readonly<Record<string, number>>
  readonly mischief: Readonly<Record<string, number>>
  readonly faults: Readonly<Record<string, number>>
  readonly violations: Readonly<Record<string, number>>
  readonly samples: readonly Sample[]
  /** What took longest from the first request to the final answer: where healing is slow. */
  readonly slowest: readonly (readonly string[])[]
}

const SAMPLES_MAX = 5
const SLOWEST_MAX = 3

export function toReport(result: RunResult, startedAt: string): Report {
  const { options, violations, facts, seconds, requests, mischief, faults } = result
  const counts = VIOLATION_KINDS.map((kind) => [kind, ofKind(violations, kind).length] as const)
  return {
    store: options.store,
    seed: options.seed,
    plant: options.plant,
    ok: violations.length === 0,
    startedAt,
    seconds,
    done: doneIn(facts, requests),
    neighbours: options.neighbours === 'on' ? neighboursIn(facts) : {},
    waiting: waitingOf(facts.waits),
    answers: answersIn(facts.stories),
    mischief,
    faults,
    violations: Object.fromEntries(counts),
    samples: VIOLATION_KINDS.flatMap((kind) => ofKind(violations, kind).slice(0, SAMPLES_MAX)).map(
      (violation) => toSample(violation, facts),
    ),
    slowest: slowestOf(facts.stories).map(historyOf),
  }
}

function slowestOf(stories: readonly Story[]): Story[] {
  const lastedMs = ({ seen, isLeft }: Story) =>
    isLeft ? 0 : (seen.at(-1)?.endedMs ?? 0) - (seen[0]?.sentMs ?? 0)
  return stories.toSorted((one, other) => lastedMs(other) - lastedMs(one)).slice(0, SLOWEST_MAX)
}

function doneIn(facts: Facts, requests: number): Record<string, number> {
  const { stories, effects, books, records, messages } = facts
  const succeeded = effects.filter(({ status }) => status === 'succeeded').length
  return {
    stories: stories.length,
    'hot keys': stories.filter(({ isHot }) => isHot).length,
    requests,
    records: records.length,
    'effects at the provider': succeeded,
    'entries in the books': books.entries.length,
    'messages relayed': messages.filter(({ state }) => state === 'done').length,
  }
}

function answersIn(stories: readonly Story[]): Record<string, number> {
  const all = stories.flatMap(({ seen }) => seen.map(summaryOf)).toSorted()
  return Object.fromEntries(
    [...Map.groupBy(all, (name) => name)].map(([name, { length }]) => [name, length]),
  )
}

function ofKind(violations: readonly Violation[], kind: Violation['kind']): Violation[] {
  return violations.filter((violation) => violation.kind === kind)
}

/** With the key, the record and the story that it is about, as far as they can be told. */
function toSample(violation: Violation, facts: Facts): Sample {
  const { stories, records } = facts
  const told = stories.find(({ number }) => number === violation.story)
  const recordId = violation.recordId ?? recordOf(violation, facts)
  const record = records.find((one) => (told ? isOwn(one, told) : one.recordId === recordId))
  const story = told ?? stories.find((one) => record !== undefined && isOwn(record, one))
  return {
    ...violation,
    recordId: recordId ?? record?.recordId,
    key: story?.key ?? record?.key,
    history: historyOf(story),
  }
}

function recordOf({ reference }: Violation, { books }: Facts): string | undefined {
  const { payments, refunds, orders, transfers } = books
  const rows = [...payments, ...refunds, ...orders, ...transfers]
  return rows.find(({ id }) => id === reference)?.recordId
}

function isOwn(record: Facts['records'][number], { tenant, key }: Story): boolean {
  return record.tenant === tenant && record.key === key
}

function historyOf(story: Story | undefined): string[] {
  if (story === undefined) return []
  const { tenant, kind, path, body, twin } = story
  const twinNote = twin === undefined ? '' : `, twin ${twin}`
  return [
    `story ${story.number}: ${kind} of ${tenant}, POST ${path} ${JSON.stringify(body)}${twinNote}`,
    ...story.seen.map(({ asked, node, sentMs, endedMs, outcome }) => {
      const end =
        outcome.kind === 'no_answer'
          ? outcome.why
          : `${outcome.status}${outcome.replayed ? ' (replayed)' : ''} ${outcome.body}`
      return `${Math.round(sentMs)}–${Math.round(endedMs)} ms ${node} ${asked}: ${end}`
    }),
  ]
}

export function writeReport(file: string, report: Report | Comparison): void {
  mkdirSync(dirname(file), { recursive: true })
  writeFileSync(file, `${JSON.stringify(report, undefined, 2)}\n`)
}

/** The table that is printed. */
export function describeReport(report: Report): string {
  const { store, seed, seconds, done, answers, mischief, faults, violations, samples } = report
  const { neighbours, waiting } = report
  const hasNeighbours = Object.keys(neighbours).length > 0
  const title =
    `${store}, seed ${seed}: ${seconds.mischief} s of mischief, ${seconds.healing} s to heal` +
    (report.plant === undefined ? '' : `, with the bug ${report.plant}`)
  return [
    title,
    '',
    section('what was done', done),
    ...(hasNeighbours ? [section('what bad neighbours did', neighbours)] : []),
    describeWaiting(waiting),
    section('what clients saw', answers),
    section('what was done to it', mischief),
    section('what the provider did wrong', faults),
    section('violations', violations),
    ...samples.flatMap(describeSample),
    report.ok ? 'Nothing was found.' : 'Something was found.',
  ].join('\n')
}

function section(title: string, counts: Readonly<Record<string, number>>): string {
  const names = Object.keys(counts)
  const width = Math.max(24, ...names.map((name) => name.length))
  const lines = names.map((name) => `  ${name.padEnd(width)} ${String(counts[name]).padStart(8)}`)
  return [title, ...(lines.length === 0 ? ['  nothing'] : lines), ''].join('\n')
}

function describeSample({ kind, detail, key, recordId, history }: Sample): string[] {
  return [
    `${kind}: ${detail}`,
    `  key ${key ?? 'none'}, record ${recordId ?? 'none'}`,
    ...history.map((line) => `  ${line}`),
    '',
  ]
}
