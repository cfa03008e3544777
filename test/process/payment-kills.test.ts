/**
 * A process is killed (kill -9) at every await of a payment, and of the recovery of one. Whatever
 * it leaves behind, there is one payment in the end: one charge, books that balance, one receipt,
 * one reply.
 *
 * Between two commits (and charges, and deliveries) every kill leaves the same behind, so where a
 * client waits every await is tried, and of the other programs those around them:
 * `ONCEKEY_KILL_POINTS=all` tries every await of all of them, with every way to recover.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { Bug } from './payment-bugs.ts'
import { happenedBefore, type Mark, type Trace } from './payment-kill.ts'
import { Acquirer } from './payment-ledgers.ts'
import { WAYS, type Way } from './payment-operation.ts'
import type { Program } from './payment-programs.ts'
import { ORDERS, problemsOf, type Order } from './payment-recovery.ts'
import { openScene, type Scene } from './payment-scene.ts'

const TRIES_ALL = process.env['ONCEKEY_KILL_POINTS'] === 'all'
/** Processes at the same time. */
const VICTIMS = 3
/** The full run takes its time. */
const LIMIT_MS = (TRIES_ALL ? 60 : 10) * 60_000

const HOWS = WAYS.flatMap((way) => ORDERS.map((order) => ({ way, order })))

let scene: Scene
const compiled = mkdtempSync(join(tmpdir(), 'oncekey-compiled-'))
beforeAll(async () => {
  // Hundreds of processes run the same files: to compile them is most of what they would do.
  process.env['NODE_COMPILE_CACHE'] = compiled
  scene = await openScene()
})
afterAll(() => {
  scene.remove()
  rmSync(compiled, { recursive: true, force: true })
})

interface Trial {
  readonly from: string
  readonly program: Program
  readonly trace: Trace
  readonly bug?: Bug
}

interface Failure {
  readonly point: number
  /** Where it waited when it was killed. */
  readonly awaited: string | undefined
  readonly way: Way
  readonly order: Order
  readonly problems: readonly string[]
}

/** Runs a program to its end, to learn where it can be killed. */
async function learn(from: string, program: Program, bug?: Bug): Promise<Trial> {
  const { trace } = await scene.run(from, program, 0, bug)
  if (trace === undefined) throw new Error(`"${program}" did not get to its end`)
  return { from, program, trace, ...(bug === undefined ? {} : { bug }) }
}

/** Kills a process at one point, and looks at what becomes of the payment. */
async function tryPoint(
  { from, program, trace, bug }: Trial,
  point: number,
  hows: readonly { readonly way: Way; readonly order: Order }[],
): Promise<Failure[]> {
  const killed = await scene.run(from, program, point, bug)
  expect(killed.trace, `it was not killed at ${point}`).toBeUndefined()
  // It was killed where the trace says, or there is no telling what was tried.
  const chargesBefore = chargesIn(from) + happenedBefore(trace, point, 'charged')
  expect(chargesIn(killed.folder), `charges before ${point}`).toBe(chargesBefore)

  const failures: Failure[] = []
  for (const how of hows) {
    const aftermath = await scene.recover(killed, how)
    const problems = problemsOf(aftermath, {
      told: killed.told,
      isDelivered: happenedBefore(trace, point, 'delivered') === 1,
    })
    const awaited = trace.awaited[point - 1]
    if (problems.length > 0) failures.push({ point, awaited, ...how, problems })
  }
  return failures
}

const chargesIn = (folder: string) => new Acquirer(folder, { dedups: false }).charges.length

/** The first one after each thing that is done for good, and the very first. */
function firstPoints({ marks }: Trace): number[] {
  return [...new Set([1, ...marks.map(({ at }) => at + 1)])]
}

/** Those, and the last one before each. */
function pointsAround({ marks, points }: Trace): number[] {
  const around = new Set([1, points, ...marks.flatMap(({ at }) => [at, at + 1])])
  return [...around].filter((point) => point >= 1 && point <= points)
}

/** Where a client waits and something was just done for good: with every way to recover. */
async function tryAll(trial: Trial, points: readonly number[]): Promise<Failure[]> {
  const first = new Set(trial.program === 'inline' ? firstPoints(trial.trace) : [])
  const howsOf = (point: number) =>
    TRIES_ALL || first.has(point) ? HOWS : [HOWS[point % HOWS.length]!]
  const failures = await each(points, (point) => tryPoint(trial, point, howsOf(point)))
  return failures.flat().toSorted((a, b) => a.point - b.point)
}

async function each<Result>(
  points: readonly number[],
  work: (point: number) => Promise<Result>,
): Promise<Result[]> {
  const results: Result[] = []
  const left = [...points]
  const workOn = async () => {
    for (let point = left.shift(); point !== undefined; point = left.shift()) {
      results.push(await work(point))
    }
  }
  await Promise.all(Array.from({ length: VICTIMS }, workOn))
  return results
}

/** What a process leaves that was killed when it had sent the charge, or was about to. */
async function leftAfter(what: 'charged' | 'intended'): Promise<string> {
  const { trace } = await learn(scene.fresh, 'inline')
  const at = markOf(trace.marks, 'charged')
  const { folder } = await scene.run(scene.fresh, 'inline', what === 'charged' ? at + 1 : at)
  return folder
}

const markOf = (marks: readonly Mark[], what: string) =>
  marks.find((mark) => mark.what === what)!.at

const everyPointOf = ({ trace }: Trial) => Array.from({ length: trace.points }, (_, n) => n + 1)
const filesOf = ({ trace }: Trial) => new Set(trace.awaited.map((line) => line.split(':')[0]))

/** Where every program of its kind has awaits, so that these are among the points. */
const FILES: Record<Program, readonly string[]> = {
  inline: [
    'src/core/engine.ts',
    'src/core/execution.ts',
    'src/core/run-context.ts',
    'src/durable/operation.ts',
    'src/durable/operation-run.ts',
    'src/durable/external-phase.ts',
    'src/durable/relay.ts',
    'src/durable/message-run.ts',
    'src/stores/sqlite/transaction.ts',
    'src/stores/sqlite/writer.ts',
  ],
  accepted: ['src/durable/operation-run.ts', 'src/durable/worker.ts'],
  resumed: ['src/durable/find-out.ts', 'src/durable/worker.ts', 'src/durable/reconciler.ts'],
}

describe('a payment whose process is killed', () => {
  it(
    'is made once, wherever its client was waiting for it',
    async () => {
      const trial = await learn(scene.fresh, 'inline')
      expect(trial.trace.marks.map(({ what }) => what)).toEqual([
        // The claim, what was recorded, the intent.
        ...['committed', 'committed', 'committed', 'charged'],
        // The result, and the books with the reply and the receipt.
        ...['committed', 'committed'],
        // The receipt is taken, delivered and done.
        ...['committed', 'delivered', 'committed'],
      ])
      expect([...filesOf(trial)]).toEqual(expect.arrayContaining([...FILES.inline]))
      expect(await tryAll(trial, everyPointOf(trial))).toEqual([])
    },
    LIMIT_MS,
  )

  it.each([
    { program: 'accepted', title: 'where it was accepted for a worker' },
    { program: 'resumed', title: 'where its recovery is killed too', after: 'charged' },
    { program: 'resumed', title: 'where the search for it is killed too', after: 'intended' },
  ] as const)(
    'is made once $title',
    async ({ program, ...given }) => {
      const from = 'after' in given ? await leftAfter(given.after) : scene.fresh
      const trial = await learn(from, program)
      expect([...filesOf(trial)]).toEqual(expect.arrayContaining([...FILES[program]]))
      const points = TRIES_ALL ? everyPointOf(trial) : pointsAround(trial.trace)
      expect(await tryAll(trial, points)).toEqual([])
    },
    LIMIT_MS,
  )
})

/** It thinks that it holds the key, and by its own clock it does. */
describe('a payment whose process stands still', () => {
  it(
    'is made once, although it goes on when others have long finished it',
    async () => {
      const trial = await learn(scene.fresh, 'inline')
      const { locked } = trial.trace
      // With the lock of the file in its hands, nobody else could do anything.
      const points = pointsAround(trial.trace).filter((point) => !locked.includes(point))
      expect(points.length).toBeGreaterThan(8)
      const failures = await each(points, async (point) => {
        const stopped = await scene.stop(trial.from, trial.program, point)
        const how = HOWS[point % 4]!
        const before = await scene.recoverThere(stopped, how)
        const { told } = await stopped.goOn()
        const aftermath = await scene.recoverThere(stopped, how)
        const awaited = trial.trace.awaited[point - 1]
        const problems = [before, aftermath].flatMap((one) =>
          problemsOf(one, { told, isDelivered: true }),
        )
        return problems.length === 0 ? [] : [{ point, awaited, ...how, problems }]
      })
      expect(failures.flat()).toEqual([])
    },
    LIMIT_MS,
  )
})

describe('these checks', () => {
  it.each([
    {
      bug: 'the intent is not committed',
      // The charge is made.
      pointOf: ({ marks }: Trace) => markOf(marks, 'charged') + 1,
      problem: '2 charges',
    },
    {
      bug: 'the rows are committed after the recovery point',
      // The claim is committed, and then the first phase.
      pointOf: ({ marks }: Trace) => marks[1]!.at + 1,
      problem: '0 payments',
    },
    {
      bug: 'a message is done before it is delivered',
      pointOf: ({ marks }: Trace) => markOf(marks, 'delivered'),
      problem: '0 receipts',
    },
  ] as const)(
    'notice when $bug',
    async ({ bug, pointOf, problem }) => {
      const trial = await learn(scene.fresh, 'inline', bug)
      const failures = await tryPoint(trial, pointOf(trial.trace), [HOWS[0]!])
      expect(failures.flatMap(({ problems }) => problems)).toContain(problem)
    },
    LIMIT_MS,
  )
})
