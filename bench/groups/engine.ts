/** Our engine on each of our stores, in one process. */
import { inParallel, type Context, type Line } from '../run/context.ts'
import type { ServerName } from '../run/servers.ts'
import type { StoreName } from '../subjects/stores.ts'
import { subjectLines } from './subject-lines.ts'

export const STORE_TITLES: Readonly<Record<StoreName, string>> = {
  memory: 'memory',
  'sqlite-full': 'SQLite FULL',
  'sqlite-normal': 'SQLite NORMAL',
  postgres: 'PostgreSQL',
  mariadb: 'MariaDB',
  redis: 'Redis',
  cached: 'PostgreSQL, cached in Redis',
}

export const SERVERS_OF: Readonly<Record<StoreName, readonly ServerName[]>> = {
  memory: [],
  'sqlite-full': [],
  'sqlite-normal': [],
  postgres: ['postgres'],
  mariadb: ['mariadb'],
  redis: ['redis'],
  cached: ['postgres', 'redis'],
}

const NOTES: Partial<Record<StoreName, string>> = {
  memory: 'keeps nothing after its process ends: for tests',
  'sqlite-normal': 'the last commits are lost when the power fails',
  redis: 'as durable as the server, which keeps nothing on disk here',
}

const IN_TRANSACTION = 'the handler writes a row in the transaction of its key'

interface Entry {
  readonly store: StoreName
  readonly inTransaction?: true
}

const ENTRIES: readonly Entry[] = [
  { store: 'memory' },
  { store: 'sqlite-full' },
  { store: 'sqlite-normal' },
  { store: 'postgres' },
  { store: 'mariadb' },
  { store: 'redis' },
  { store: 'cached' },
  { store: 'sqlite-full', inTransaction: true },
  { store: 'postgres', inTransaction: true },
  { store: 'mariadb', inTransaction: true },
]

export async function engineLines(context: Context): Promise<Line[]> {
  const lines = await inParallel(ENTRIES, async ({ store, inTransaction }) => {
    const places = await context.servers.places(...SERVERS_OF[store])
    const subject = `${STORE_TITLES[store]}${inTransaction === true ? ', transactional' : ''}`
    const note = inTransaction === true ? IN_TRANSACTION : NOTES[store]
    return subjectLines(context, {
      group: 'engine',
      id: `engine.${store}${inTransaction === true ? '-transaction' : ''}`,
      subject,
      config: { kind: 'own', store, ...(inTransaction === true ? { inTransaction } : {}) },
      places,
      inFlight: context.scale.inFlight,
      // A transactional replay is the same as the replay of the line above.
      whats: inTransaction === true ? ['first'] : ['first', 'replay', 'hot'],
      ...(note === undefined ? {} : { note }),
    })
  })
  return lines.flat()
}
