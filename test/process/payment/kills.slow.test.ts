// Takes about 89 s.
/**
 * A process is killed (kill -9) at every await of a payment, and of the recovery of a payment. In
 * every case there is one payment in the end: one charge, balanced books, one receipt, one reply.
 *
 * Between two permanent changes (commits, charges, deliveries) every kill leaves the same state. So
 * every await is tried while a client waits, and in the other programs those around the changes.
 * `ONCEKEY_KILL_POINTS=all` tries every await of all programs, with every way to recover.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { Bug } from './bugs.ts'
import { happenedBefore, type Mark, type Trace } from './kill.ts'
import { Acquirer } from './ledgers.ts'
import { WAYS, type Way } from './operation.ts'
import type { Program } from './programs.ts'
import { ORDERS, problemsOf, type Order } from './recovery.ts'
import { openScene, type Scene } from './scene.ts'

const TRIES_ALL = process.env['ONCEKEY_KILL_POINTS'] === 'all'
/** Number of processes that run at the same time. */
const VICTIMS = 3
/** The full run takes longer. */
const LIMIT_MS = (TRIES_ALL ? 60 : 10) * 60_000

const HOWS = WAYS.flatMap((way) => ORDERS.map((order) => ({ way, order })))

let scene: Scene
const compiled = mkdtempSync(join(tmpdir(), 'oncekey-compiled-'))
beforeAll(async () => {
  // Hundreds of processes run the same files, so the compiled code is cached.
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
  /** The source line at which the process waited when it was killed. */
  readonly awaited: string | undefined
  readonly way: Way
  readonly order: Order
  readonly problems: readonly string[]
}

/** Runs a program to its end, to learn where it can be killed. */
async function learn(from: string, program: Program, bug?: Bug): Promise<Trial> {
  const { trace } = await scene.run(from, program, 0, bug)
  if (trace === undefined) throw new Error(`"${program}" did not finish`)
  return { from, program, trace, ...(bug === undefined ? {} : { bug }) }
}

/** Kills a process at one point, and checks the payment after recovery. */
async function tryPoint(
  { from, program, trace, bug }: Trial,
  point: number,
  hows: readonly { readonly way: Way; readonly order: Order }[],
): Promise<Failure[]> {
  const killed = await scene.run(from, program, point, bug)
  expect(killed.trace, `the process was not killed at ${point}`).toBeUndefined()
  // Confirms that the process was killed at the point that the trace names.
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

/** The first point, and the first point after each permanent change. */
function firstPoints({ marks }: Trace): number[] {
  return [...new Set([1, ...marks.map(({ at }) => at + 1)])]
}

/** The first points, and the last point before each change. */
function pointsAround({ marks, points }: Trace): number[] {
  const around = new Set([1, points, ...marks.flatMap(({ at }) => [at, at + 1])])
  return [...around].filter((point) => point >= 1 && point <= points)
}

/** Tries each point after a change while a client waits, with every way to recover. */
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

/** The state of a process that was killed after it sent the charge, or before. */
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

/** Files in which every program of a kind has awaits, so they must occur among the points. */
const FILES: Record<Program, readonly string[]> = {
  inline: [
    'src/core/engine/engine.ts',
    'src/core/attempt/execution.ts',
    'src/core/attempt/operation-attempt.ts',
    'src/durable/operations/operation.ts',
    'src/durable/operations/operation-run.ts',
    'src/durable/operations/external-phase.ts',
    'src/durable/outbox/relay.ts',
    'src/durable/outbox/message-run.ts',
    'src/stores/sqlite/transaction.ts',
    'src/stores/sqlite/driver/connections.ts',
  ],
  accepted: ['src/durable/operations/operation-run.ts', 'src/durable/operations/worker.ts'],
  resumed: [
    'src/durable/operations/find-out.ts',
    'src/durable/operations/worker.ts',
    'src/durable/reconciliation/reconciler.ts',
  ],
}

describe('kills of payment processes', () => {
  it(
    "a payment is made once when its process is killed at any await of its client's request",
    async () => {
      const trial = await learn(scene.fresh, 'inline')
      expect(trial.trace.marks.map(({ what }) => what)).toEqual([
        // The claim, the recorded payment, the intent.
        ...['committed', 'committed', 'committed', 'charged'],
        // The result, and the booking with the reply and the receipt.
        ...['committed', 'committed'],
        // The receipt is claimed, delivered and done.
        ...['committed', 'delivered', 'committed'],
      ])
      expect([...filesOf(trial)]).toEqual(expect.arrayContaining([...FILES.inline]))
      expect(await tryAll(trial, everyPointOf(trial))).toEqual([])
    },
    LIMIT_MS,
  )

  it.each([
    { program: 'accepted', title: 'when it was accepted for a worker' },
    { program: 'resumed', title: 'when its recovery is killed too', after: 'charged' },
    {
      program: 'resumed',
      title: 'when the search for its charge is killed too',
      after: 'intended',
    },
  ] as const)(
    'a killed payment is made once $title',
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

/** The process believes that it holds the key, and by its own clock it does. */
describe('stopped payment processes', () => {
  it(
    'a payment is made once when its stopped process continues after others finished it',
    async () => {
      const trial = await learn(scene.fresh, 'inline')
      const { locked } = trial.trace
      // A process that is stopped with the write lock of the file would block all others.
      const points = pointsAround(trial.trace).filter((point) => !locked.includes(point))
      expect(points.length).toBeGreaterThan(8)
      const failures = await each(points, async (point) => {
        const stopped = await scene.stop(trial.from, trial.program, point)
        const how = HOWS[point % 4]!
        const before = await scene.recoverThere(stopped, how)
        const { told } = await stopped.resume()
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

describe('checks of the kill tests', () => {
  it.each([
    {
      bug: 'the intent is not committed',
      // After the charge.
      pointOf: ({ marks }: Trace) => markOf(marks, 'charged') + 1,
      problem: '2 charges',
    },
    {
      bug: 'the rows are committed after the recovery point',
      // After the commits of the claim and the first phase.
      pointOf: ({ marks }: Trace) => marks[1]!.at + 1,
      problem: '0 payments',
    },
    {
      bug: 'a message is done before it is delivered',
      pointOf: ({ marks }: Trace) => markOf(marks, 'delivered'),
      problem: '0 receipts',
    },
  ] as const)(
    'the kill tests detect when $bug',
    async ({ bug, pointOf, problem }) => {
      const trial = await learn(scene.fresh, 'inline', bug)
      const failures = await tryPoint(trial, pointOf(trial.trace), [HOWS[0]!])
      expect(failures.flatMap(({ problems }) => problems)).toContain(problem)
    },
    LIMIT_MS,
  )
})
