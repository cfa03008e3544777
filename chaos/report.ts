/** The report of a run: a table for the terminal, and JSON in a file. */
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
  readonly seconds: { readonly disruption: number; readonly healing: number }
  readonly requests: number
  readonly disruption: Readonly<Record<string, number>>
  readonly faults: Readonly<Record<string, number>>
}

export interface Sample extends Violation {
  readonly key?: string | undefined
  /** The answers that its client got, line by line. */
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
  /** Counts of the bad neighbours' work; empty without neighbours. */
  readonly neighbours: Readonly<Record<string, number>>
  /** How long the other tenants waited. */
  readonly waiting: readonly Waiting[]
  /** The answers that clients got, and how often. */
  readonly answers: Readonly<Record<string, number>>
  readonly disruption: Readonly<Record<string, number>>
  readonly faults: Readonly<Record<string, number>>
  readonly violations: Readonly<Record<string, number>>
  readonly samples: readonly Sample[]
  /** The stories with the longest time from the first request to the final answer. */
  readonly slowest: readonly (readonly string[])[]
}

const SAMPLES_MAX = 5
const SLOWEST_MAX = 3

export function toReport(result: RunResult, startedAt: string): Report {
  const { options, violations, facts, seconds, requests, disruption, faults } = result
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
    disruption,
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

/** Adds the key, the record and the story of a violation, as far as they are known. */
function toSample(violation: Violation, facts: Facts): Sample {
  const { stories, records } = facts
  const named = stories.find(({ number }) => number === violation.story)
  const recordId = violation.recordId ?? recordOf(violation, facts)
  const record = records.find((one) => (named ? isOwn(one, named) : one.recordId === recordId))
  const story = named ?? stories.find((one) => record !== undefined && isOwn(record, one))
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

/** The printed table. */
export function describeReport(report: Report): string {
  const { store, seed, seconds, done, answers, disruption, faults, violations, samples } = report
  const { neighbours, waiting } = report
  const hasNeighbours = Object.keys(neighbours).length > 0
  const title =
    `${store}, seed ${seed}: ${seconds.disruption} s of disruptions, ` +
    `${seconds.healing} s of recovery` +
    (report.plant === undefined ? '' : `, with the bug ${report.plant}`)
  return [
    title,
    '',
    section('work', done),
    ...(hasNeighbours ? [section('bad neighbours', neighbours)] : []),
    describeWaiting(waiting),
    section('answers to clients', answers),
    section('disruptions', disruption),
    section('faults of the provider', faults),
    section('violations', violations),
    ...samples.flatMap(describeSample),
    report.ok ? 'No violation was found.' : 'Violations were found.',
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
