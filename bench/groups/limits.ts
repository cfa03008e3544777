/** Upper limits: the fastest possible implementation, and its parts. */
import type { SubjectConfig } from '../programs/subject.ts'
import type { Figures } from '../report/results.ts'
import { inParallel, sleeperOf, type Context, type Line } from '../run/context.ts'
import type { ServerName } from '../run/servers.ts'
import { FAMILY } from './http.ts'
import { subjectLines } from './subject-lines.ts'

interface Limit {
  readonly id: string
  readonly subject: string
  readonly servers: readonly ServerName[]
  readonly config: SubjectConfig
  readonly base: string
  readonly note: string
}

const BATCHED = 'token, lease, fingerprint, fence and batches as ours; nothing else'

const LIMITS: readonly Limit[] = [
  {
    id: 'limits.batched-postgres',
    subject: 'hand-written batched SQL, PostgreSQL',
    servers: ['postgres'],
    config: { kind: 'batched-postgres' },
    base: 'engine.postgres',
    note: BATCHED,
  },
  {
    id: 'limits.batched-sqlite',
    subject: 'hand-written batched SQL, SQLite FULL',
    servers: [],
    config: { kind: 'batched-sqlite' },
    base: 'engine.sqlite-full',
    note: BATCHED,
  },
  {
    id: 'limits.bare-redis',
    subject: 'bare SET NX and SET, Redis',
    servers: ['redis'],
    config: { kind: 'bare-redis' },
    base: 'engine.redis',
    note: 'no fence, no fingerprint, no takeover from a dead holder',
  },
]

export async function limitLines(context: Context): Promise<Line[]> {
  const inFlight = context.scale.inFlight.filter((count) => count !== 8)
  const subjects = await inParallel(LIMITS, async ({ servers, ...limit }) => {
    const places = await context.servers.places(...servers)
    return subjectLines(context, {
      ...limit,
      group: 'limits',
      places,
      inFlight,
      whats: ['first', 'replay'],
    })
  })
  return [...subjects.flat(), ...(await partLines(context))]
}

async function partLines(context: Context): Promise<Line[]> {
  const { warmMs, engineWakeMs } = context.scale
  const places = await context.servers.places('postgres')
  const program = await context.start('limits', { places }, 'limits: fsyncs and round trips')
  const sleeper = sleeperOf(engineWakeMs, (ms) =>
    program.call('writes', { inFlight: 1, ms, warmMs: 0 }),
  )
  const part = (id: string, call: string, subject: string, note: string): Line => {
    return {
      id,
      group: 'limits',
      subject,
      what: call,
      load: 'one at a time',
      note,
      measure: async (ms) => (await program.call(call, { inFlight: 1, ms, warmMs })) as Figures,
      sleeper,
      // Compared with the cost of a request through Express.
      family: FAMILY,
    }
  }
  return [
    part('limits.fsyncs', 'fsyncs', 'the disk', '8 KiB written and synced (fdatasync)'),
    part(
      'limits.round-trips.writes.1',
      'writes',
      '2 bare round trips, PostgreSQL',
      'an INSERT and an UPDATE by primary key, prepared, each with its own commit: one pair',
    ),
    part(
      'limits.round-trips.reads.1',
      'reads',
      '2 bare round trips, PostgreSQL',
      'SELECT 1 twice: two round trips without any write',
    ),
  ]
}
