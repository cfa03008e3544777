/**
 * Processes that pay on a database are killed (-9) at every commit: before it is sent, while it
 * is in flight, and after it has taken effect. In every case there is one payment in the end.
 * `ONCEKEY_KILL_POINTS=all` tries every statement, and every moment of every program.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { openPaymentDatabase, type DatabaseKind } from './databases.ts'
import { happenedBefore } from './kill.ts'
import { Acquirer } from './ledgers.ts'
import { BOOKS, WAYS } from './operation.ts'
import { PROGRAMS, type Program } from './programs.ts'
import { ORDERS, problemsOf, recover } from './recovery.ts'
import { MOMENTS, type Moment, type StatementTrace } from './statement-kill.ts'
import { startWorker } from '../worker-process.ts'

interface Server {
  readonly database: () => Promise<string>
  readonly close: () => Promise<void>
}

/** One of several databases on which trials run in parallel. Trials in one lane run in order. */
interface Lane {
  readonly kind: DatabaseKind
  readonly root: string
  readonly url: string
}

interface Kill {
  readonly program: Program
  /** The statement at which the previous process was killed, if there was one. */
  readonly left: number | undefined
  readonly trace: StatementTrace
  readonly point: number
  readonly moment: Moment
  readonly how: (typeof HOWS)[number]
}

const TRIES_ALL = process.env['ONCEKEY_KILL_POINTS'] === 'all'
/**
 * Each database gets `inline`, and one of the programs that differ only in the process that pays.
 */
const USUAL: Readonly<Record<DatabaseKind, readonly Program[]>> = {
  postgres: ['inline', 'accepted'],
  mariadb: ['inline', 'resumed'],
}
const LANES = 3
/** The full run takes longer. */
const LIMIT_MS = (TRIES_ALL ? 60 : 10) * 60_000
const SETUP_MS = 120_000
const HOWS = WAYS.flatMap((way) => ORDERS.map((order) => ({ way, order })))

export function runPaymentKills(kind: DatabaseKind, startServer: () => Promise<Server>): void {
  const root = mkdtempSync(join(tmpdir(), 'oncekey-payments-'))
  let server: Server
  let lanes: readonly Lane[]
  beforeAll(async () => {
    process.env['NODE_COMPILE_CACHE'] = join(root, 'compiled')
    server = await startServer()
    lanes = await Promise.all(Array.from({ length: LANES }, () => openLane(kind, root, server)))
  }, SETUP_MS)
  afterAll(async () => {
    await server.close()
    rmSync(root, { recursive: true })
  }, SETUP_MS)

  it.each(TRIES_ALL ? PROGRAMS : USUAL[kind])(
    'a database payment is made once when its process is killed while it is %s',
    async (program) => {
      const { left, trace } = await learn(lanes[0]!, program)
      const points = trace.statements.flatMap(({ commits }, index) =>
        commits || TRIES_ALL ? [index + 1] : [],
      )
      const moments = MOMENTS.filter(
        (moment) => moment !== 'sent' || program === 'inline' || TRIES_ALL,
      )
      const kills = points.flatMap((point) => moments.map((moment) => ({ point, moment })))
      // Commits: claim, recorded payment, intent, result, booking; receipt claimed and done.
      if (program === 'inline') expect(points).toHaveLength(7)
      const failures = await each(lanes, kills, (lane, kill, index) =>
        tryKill(lane, { program, left, trace, ...kill, how: HOWS[index % HOWS.length]! }),
      )
      expect(failures.flat()).toEqual([])
    },
    LIMIT_MS,
  )
}

async function openLane(kind: DatabaseKind, root: string, server: Server): Promise<Lane> {
  const url = await server.database()
  const { store, rows, close } = await openPaymentDatabase(kind, url)
  await store.migrate()
  for (const statement of BOOKS) await rows(statement)
  await close()
  return { kind, root, url }
}

/** Prepares an empty database and new ledgers, with the state of a killed process, if any. */
async function prepareLane(lane: Lane, left: number | undefined): Promise<string> {
  const folder = mkdtempSync(join(lane.root, 'ledgers-'))
  const { clear, close } = await openPaymentDatabase(lane.kind, lane.url)
  await clear()
  await close()
  const kill = { program: 'inline', moment: 'before' } as const
  if (left !== undefined) await run(lane, folder, { ...kill, point: left })
  return folder
}

/** Runs a program to its end, to learn where it can be killed. */
async function learn(lane: Lane, program: Program): Promise<Pick<Kill, 'left' | 'trace'>> {
  let left: number | undefined
  if (program === 'resumed') {
    const { trace } = await learn(lane, 'inline')
    // The charge is made, and its result is about to be recorded.
    left = trace.marks.find(({ what }) => what === 'charged')!.at + 1
  }
  const folder = await prepareLane(lane, left)
  const { trace } = await run(lane, folder, { program, point: 0, moment: 'before' })
  if (trace === undefined) throw new Error(`"${program}" did not finish`)
  return { left, trace }
}

async function run(
  { kind, url }: Lane,
  folder: string,
  { program, point, moment }: Pick<Kill, 'program' | 'point' | 'moment'>,
) {
  const args = [kind, url, folder, program, `${point}`, moment]
  const victim = startWorker('payment/database-victim.ts', args)
  const code = await victim.ended
  const lines = victim.lines.map((line) => JSON.parse(line) as StatementTrace & { told?: string })
  const told = lines.find((line) => line.told !== undefined)?.told
  const trace = lines.find((line) => line.points !== undefined)
  // The process failed: this call throws its error output.
  if (trace === undefined && code !== null) await victim.written(Number.POSITIVE_INFINITY)
  return { told, trace, atMs: Date.now() }
}

async function tryKill(lane: Lane, kill: Kill) {
  const { program, left, trace, point, moment, how } = kill
  const folder = await prepareLane(lane, left)
  const killed = await run(lane, folder, kill)
  expect(killed.trace, `the process was not killed at ${point}`).toBeUndefined()
  const { charges } = new Acquirer(folder, { dedups: false })
  const chargesBefore = (left === undefined ? 0 : 1) + happenedBefore(trace, point, 'charged')
  expect(charges.length, `charges before ${point} of "${program}"`).toBe(chargesBefore)

  const clock = new FakeClock(killed.atMs)
  const database = await openPaymentDatabase(lane.kind, lane.url, { clock })
  try {
    // Transactions of killed processes end when the database notices the broken connections.
    await expect.poll(database.otherConnections, { timeout: 20_000 }).toBe(0)
    const pass = (ms: number) => clock.advanceAsync(ms)
    const aftermath = await recover({ ...database, clock, folder, pass }, how)
    const problems = problemsOf(aftermath, {
      told: killed.told,
      isDelivered: happenedBefore(trace, point, 'delivered') === 1,
    })
    const { sql } = trace.statements[point - 1]!
    return problems.length === 0 ? [] : [{ point, moment, sql, ...how, problems }]
  } finally {
    await database.close()
  }
}

/** Each lane takes the next trial when it has finished one. */
async function each<Item, Result>(
  lanes: readonly Lane[],
  items: readonly Item[],
  work: (lane: Lane, item: Item, index: number) => Promise<Result>,
): Promise<Result[]> {
  const results: Result[] = []
  const left = [...items.entries()]
  const workOn = async (lane: Lane) => {
    for (let next = left.shift(); next !== undefined; next = left.shift()) {
      results.push(await work(lane, next[1], next[0]))
    }
  }
  await Promise.all(lanes.map(workOn))
  return results
}
