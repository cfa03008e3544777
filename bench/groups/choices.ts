/** Design choices of this package, each measured against the alternative. */
import type { SubjectConfig } from '../programs/subject.ts'
import { inParallel, type Context, type Line } from '../run/context.ts'
import type { ServerName } from '../run/servers.ts'
import { CONNECTIONS } from '../run/work.ts'
import { subjectLines } from './subject-lines.ts'

interface Choice {
  readonly id: string
  readonly subject: string
  readonly servers: readonly ServerName[]
  readonly config: SubjectConfig
  readonly base: string
  readonly note: string
}

const ONE_BY_ONE = 'our store with a call for every row instead of batches'

const CHOICES: readonly Choice[] = [
  {
    id: 'choices.single-sqlite',
    subject: 'SQLite FULL, one row a call',
    servers: [],
    config: { kind: 'own', store: 'sqlite-full', singleCalls: 1 },
    base: 'engine.sqlite-full',
    note: ONE_BY_ONE,
  },
  {
    id: 'choices.single-postgres',
    subject: 'PostgreSQL, one row a call',
    servers: ['postgres'],
    config: { kind: 'own', store: 'postgres', singleCalls: CONNECTIONS },
    base: 'engine.postgres',
    note: ONE_BY_ONE,
  },
  {
    id: 'choices.single-mariadb',
    subject: 'MariaDB, one row a call',
    servers: ['mariadb'],
    config: { kind: 'own', store: 'mariadb', singleCalls: CONNECTIONS },
    base: 'engine.mariadb',
    note: ONE_BY_ONE,
  },
  {
    id: 'choices.lock-first',
    subject: 'PostgreSQL, with a lock in Redis before it',
    servers: ['postgres', 'redis'],
    config: { kind: 'lock-first' },
    base: 'engine.postgres',
    note: 'SET NX with a token before the claim, released by a script that compares it',
  },
]

export async function choiceLines(context: Context): Promise<Line[]> {
  const lines = await inParallel(CHOICES, async ({ servers, ...choice }) => {
    const places = await context.servers.places(...servers)
    return subjectLines(context, {
      ...choice,
      group: 'choices',
      places,
      inFlight: [64],
      whats: ['first'],
    })
  })
  return lines.flat()
}
