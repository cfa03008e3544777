/** Design choices of this package, each measured against the alternative. */
import type { EncryptionConfig } from '../programs/encryption.ts'
import type { SubjectConfig } from '../programs/subject.ts'
import type { Figures } from '../report/results.ts'
import { inParallel, sleeperOf, type Context, type Line } from '../run/context.ts'
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
  return [...lines.flat(), ...(await encryptionLines(context))]
}

const CIPHERS: readonly (EncryptionConfig & { readonly subject: string; readonly note: string })[] =
  [
    { kind: 'one-key', subject: 'AES-256-GCM with one key', note: 'no header, no key ids' },
    { kind: 'aes-keyring', subject: 'aesKeyring', note: 'derives a key for each value' },
  ]

async function encryptionLines(context: Context): Promise<Line[]> {
  const { warmMs, engineWakeMs } = context.scale
  const lines = await inParallel(CIPHERS, async ({ kind, subject, note }) => {
    const program = await context.start('encryption', { kind }, `encryption: ${subject}`)
    const sleeper = sleeperOf(engineWakeMs, (ms) =>
      program.call('encrypt', { inFlight: 1, ms, warmMs: 0 }),
    )
    return ['encrypt', 'decrypt'].map((call): Line => {
      return {
        id: `choices.${kind}.${call}`,
        group: 'choices',
        subject,
        what: `${call} 2 KB`,
        load: 'one at a time',
        note,
        ...(kind === 'one-key' ? {} : { base: `choices.one-key.${call}` }),
        measure: async (ms) => (await program.call(call, { inFlight: 1, ms, warmMs })) as Figures,
        sleeper,
        family: 'encryption',
      }
    })
  })
  return lines.flat()
}
