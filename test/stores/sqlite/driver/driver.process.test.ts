import { renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { DatabaseSync } from 'node:sqlite'
import { expect, it, onTestFinished } from 'vitest'
import type { Lease } from '../../../../src/core/store/store.ts'
import { sqliteStore, type SqliteStore } from '../../../../src/stores/sqlite/index.ts'
import {
  claim,
  completeOf,
  finish,
  hold,
  LEASE_MS,
  ofKind,
  settle,
} from '../../../../src/testing/store-cases/store-case.ts'
import { messageOf } from '../../../../src/testing/durable-cases/durable-case.ts'
import { completion, setup, setupFile } from '../setup.ts'

/** A store with a held and a completed key, in a separate folder that can be removed. */
async function setupHeld() {
  const file = setupFile()
  const path = file.folder.file('keys/records.db')
  const store = file.open({ path })
  await finish(store, { key: 'done' })
  const lease = await hold(store, { key: 'held' })
  return { ...file, path, store, lease }
}

type Held = Awaited<ReturnType<typeof setupHeld>>

const DELETED = /"\/.*records\.db" was deleted or moved while the store had it open/
const REPLACED = /another file replaced "\/.*records\.db" while/
const LOG_DELETED = /records\.db-wal" was deleted or moved/
const LOG_REPLACED = /another file replaced ".*records\.db-wal"/

const otherDatabase = ({ folder }: Pick<Held, 'folder'>): string => {
  const path = folder.file('other.db')
  new DatabaseSync(path).close()
  return path
}

const DAMAGES: readonly {
  readonly name: string
  readonly message: RegExp
  readonly damage: (held: Held) => void
}[] = [
  { name: 'was deleted', message: DELETED, damage: ({ path }) => rmSync(path) },
  {
    name: 'was deleted with its log',
    message: DELETED,
    damage: ({ path }) => ['', '-wal', '-shm'].forEach((suffix) => rmSync(`${path}${suffix}`)),
  },
  { name: 'was moved', message: DELETED, damage: ({ path }) => renameSync(path, `${path}.old`) },
  {
    name: 'was replaced by a rename',
    message: REPLACED,
    damage: (held) => renameSync(otherDatabase(held), held.path),
  },
  {
    name: 'was deleted and created again',
    message: REPLACED,
    damage: ({ path }) => {
      rmSync(path)
      new DatabaseSync(path).close()
    },
  },
  { name: 'lost its log', message: LOG_DELETED, damage: ({ path }) => rmSync(`${path}-wal`) },
  {
    name: 'has the log of another file',
    message: LOG_REPLACED,
    damage: ({ path }) => {
      rmSync(`${path}-wal`)
      writeFileSync(`${path}-wal`, '')
    },
  },
  {
    name: 'lost the index of its log',
    message: /records\.db-shm" was deleted or moved/,
    damage: ({ path }) => rmSync(`${path}-shm`),
  },
  {
    name: 'was deleted with its folder',
    message: DELETED,
    damage: ({ folder }) => rmSync(folder.file('keys'), { recursive: true }),
  },
  {
    name: 'is in a folder that was renamed',
    message: DELETED,
    damage: ({ folder }) => renameSync(folder.file('keys'), folder.file('keys.old')),
  },
]

/** Every kind of call that would be acknowledged. */
function callsOf(store: SqliteStore, lease: Lease, onWork: () => void) {
  const step = { end: { kind: 'complete', ...completion() } } as const
  const work = () => {
    onWork()
    return completion()
  }
  return {
    'claims a new key': () => claim(store, { key: 'new' }),
    'replays a completed key': () => claim(store, { key: 'done' }),
    'settles a held key': () => settle(store, completeOf(lease)),
    'renews a lease': () => store.renew([{ ...lease, leaseMs: LEASE_MS }]),
    'reads a record': () => store.read({ identity: lease.identity }),
    'lists records': () => store.list({ state: 'in_progress', limit: 10 }),
    sweeps: () => store.sweep({ limit: 10 }),
    'runs a transaction': () => store.transaction(lease, work),
    'records a step': () => store.durable.phases.record(lease, step),
    'claims messages': () =>
      store.durable.outbox.claim({ topics: ['a'], limit: 1, leaseMs: LEASE_MS, token: 't' }),
    'reads the audit': () => store.durable.operator.audit({ limit: 1 }),
  }
}

it.each(DAMAGES)('acknowledges no call after its file $name', async ({ message, damage }) => {
  const held = await setupHeld()
  damage(held)
  let runs = 0
  const calls = callsOf(held.store, held.lease, () => runs++)
  for (const [name, call] of Object.entries(calls)) {
    const error = await Promise.resolve(call()).catch((thrown: unknown) => thrown)
    expect({ name, error }).toMatchObject({
      name,
      error: { code: 'STORE_FAILED', failure: 'unavailable' },
    })
    expect(String(error)).toMatch(message)
  }
  await expect(claim(held.store)).rejects.toThrow('put the right files in place')
  expect(runs).toBe(0)
})

it('detects that a symbolic link leads to another file', async () => {
  const { folder, open } = setupFile()
  const [first, second, link] = ['first.db', 'second.db', 'records.db'].map(folder.file)
  symlinkSync(first!, link!)
  const store = open({ path: link! })
  await hold(store, { key: 'a' })
  await open({ path: second! }).close()
  rmSync(link!)
  symlinkSync(second!, link!)
  await expect(claim(store, { key: 'b' })).rejects.toThrow(REPLACED)
})

// The file is deleted while the work of a transaction runs, after the check of the files.
it.each(['synchronous', 'asynchronous'])(
  'does not acknowledge a transaction when the file is deleted during its %s work',
  async (kind) => {
    const { store, path, lease } = await setupHeld()
    const outcome = store.transaction(lease, () => {
      rmSync(path)
      return kind === 'synchronous' ? completion() : Promise.resolve(completion())
    })
    await expect(outcome).rejects.toMatchObject({
      operation: 'commit a transaction',
      failure: 'unavailable',
      message: expect.stringMatching(DELETED),
    })
  },
)

it('outbox.add on the connection of the caller fails after the file was deleted', () => {
  const { store, app, path } = setup()
  app.exec('BEGIN IMMEDIATE')
  rmSync(path)
  expect(() => store.durable.outbox.add(app, messageOf())).toThrow(DELETED)
})

// Only the first write after the log was moved can still reach the log.
it('refuses writes until its files are restored, and accepts them afterwards', async () => {
  const { store, path } = await setupHeld()
  renameSync(`${path}-wal`, `${path}-away`)
  await expect(claim(store, { key: 'first' })).rejects.toThrow(LOG_DELETED)
  await expect(claim(store, { key: 'second' })).rejects.toThrow(LOG_DELETED)
  renameSync(`${path}-away`, `${path}-wal`)
  ofKind(await claim(store, { key: 'done' }), 'completed')
  ofKind(await claim(store, { key: 'second' }), 'claimed')
  ofKind(await claim(store, { key: 'first' }), 'in_progress')
})

it('does not take a checkpoint or VACUUM for a replaced file', async () => {
  const { store, app } = setup()
  await finish(store, { key: 'done' })
  for (const sql of ['PRAGMA wal_checkpoint(TRUNCATE)', 'VACUUM', 'PRAGMA optimize']) {
    app.exec(sql)
    ofKind(await claim(store, { key: 'done' }), 'completed')
    ofKind(await claim(store, { key: sql }), 'claimed')
  }
})

it('close does not touch the log of the file that replaced its file', async () => {
  const { store, path, folder, open } = await setupHeld()
  renameSync(folder.file('keys'), folder.file('keys.old'))
  const second = open({ path })
  await finish(second, { key: 'after' })
  await store.close()
  ofKind(await claim(second, { key: 'after' }), 'completed')
  ofKind(await claim(open({ path }), { key: 'after' }), 'completed')
})

it('close saves the records of a deleted log', async () => {
  const { store, path, open } = await setupHeld()
  rmSync(`${path}-wal`)
  await expect(claim(store, { key: 'done' })).rejects.toThrow(LOG_DELETED)
  await store.close()
  ofKind(await claim(open({ path }), { key: 'done' }), 'completed')
})

it('refuses to open a path whose database is missing while its log exists', () => {
  const { path, folder, open } = setupFile()
  const app = new DatabaseSync(path)
  onTestFinished(() => app.close())
  app.exec('PRAGMA journal_mode = WAL; CREATE TABLE payment (key TEXT)')
  rmSync(path)
  expect(() => open()).toThrow(/path ".*records\.db" does not exist, but its write-ahead log does/)
  writeFileSync(folder.file('empty.db-wal'), '')
  expect(() => open({ path: folder.file('empty.db') })).not.toThrow()
})

it('keeps using its file after the process changes its working directory', async () => {
  const { folder, clock } = setupFile()
  const before = process.cwd()
  onTestFinished(() => process.chdir(before))
  process.chdir(folder.file('.'))
  const store = sqliteStore({ path: 'relative.db', clock })
  onTestFinished(() => store.close())
  process.chdir('/')
  ofKind(await claim(store), 'claimed')
})
