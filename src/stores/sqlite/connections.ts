import { mkdirSync, statSync } from 'node:fs'
import type { DatabaseSync } from 'node:sqlite'
import { dirname } from 'node:path'
import { systemClock } from '../../core/clock.ts'
import { InvalidOptionsError, OncekeyError } from '../../core/errors.ts'
import { blockWhileBusy, BUSY_MS_MAX, isUnusableFile, storeFailed } from './failures.ts'
import { mainFileOf } from './foreign.ts'
import { migrate } from './migrations.ts'
import { identityAt, isSameFile, OpenFile } from './open-file.ts'

export interface ConnectionOptions {
  readonly path: string
  readonly synchronous: 'full' | 'normal'
  readonly table: string
}

/**
 * Two connections to one file. The writer runs one transaction after another; the reader sees
 * what was committed and never waits for it. With one connection for both, a replay would wait
 * for the handler whose transaction is open, or read what may yet be rolled back.
 */
export interface Connections {
  readonly writer: DatabaseSync
  readonly reader: DatabaseSync
  readonly file: OpenFile
}

/**
 * Pages in the write-ahead log before they are moved into the file: 64 MiB, sixteen times SQLite's
 * default. Keys are random, so a checkpoint moves pages from all over the indexes, and the longer
 * log moves each of them less often: a tenth less time for a pair of writes at 100,000 records
 * than with 16 MiB, and that a fifth less than with the default. The other side of it: at full load
 * the longest commit, the one with the checkpoint, takes 27 ms instead of 17, a quarter as often.
 */
const CHECKPOINT_PAGES = 16_000

type OpenDatabase = (path: string) => DatabaseSync

/**
 * A file of a container image becomes another one when it is first opened for writing, so a change
 * while it is opened is no fault until it happens again and again.
 */
const OPENINGS_MAX = 3

/** Opens the file, and makes the folder, the file and the tables where they are missing. */
export function openConnections(options: ConnectionOptions): Connections {
  const open = databaseOpener()
  const { path } = options
  try {
    mkdirSync(dirname(path), { recursive: true })
    refuseOrphanedLog(path)
    for (let opening = 1; opening <= OPENINGS_MAX; opening++) {
      const connections = openOnce(open, options)
      if (connections !== undefined) return connections
    }
  } catch (error) {
    throw openFailed(path, error)
  }
  throw storeFailed('open', new Error(`another program replaces ${JSON.stringify(path)}`))
}

/**
 * `undefined`: the path led to another file before than after. Only where it is the same one is the
 * file on which `OpenFile` keeps its eye sure to be the one that the connections have open.
 */
function openOnce(open: OpenDatabase, options: ConnectionOptions): Connections | undefined {
  const { path } = options
  const opened: DatabaseSync[] = []
  try {
    // SQLite makes the file: a descriptor of our own would drop SQLite's locks when it is closed.
    if (identityAt(path) === undefined) open(path).close()
    const before = identityAt(path)
    const writer = track(opened, open(path))
    prepareWriter(writer, options)
    const reader = track(opened, open(path))
    reader.exec('PRAGMA query_only = ON')
    for (const db of opened) db.exec('PRAGMA busy_timeout = 0')
    const file = new OpenFile(path, mainFileOf(writer))
    if (isSameFile(before, file.identity)) return { writer, reader, file }
  } catch (error) {
    for (const db of opened) db.close()
    throw error
  }
  for (const db of opened) db.close()
  return undefined
}

/** SQLite deletes a log whose database is missing, and with it the last acknowledged keys. */
function refuseOrphanedLog(path: string): void {
  if (identityAt(path) !== undefined) return
  const log = `${path}-wal`
  const bytes = statSync(log, { throwIfNoEntry: false })?.size ?? 0
  // Looked at again: another process may have made both in the meantime.
  if (bytes === 0 || identityAt(path) !== undefined) return
  throw new InvalidOptionsError(
    `sqliteStore: path ${JSON.stringify(path)} does not exist, but its write-ahead log does: the ` +
      'database was deleted or moved without it. Put the database back, or remove the log ' +
      `${JSON.stringify(log)} to begin without any records`,
  )
}

/**
 * Looked up when a store is made, not imported: the module must load on a Node without it, where
 * an application may well use another store.
 */
function databaseOpener(): OpenDatabase {
  const sqlite = process.getBuiltinModule?.('node:sqlite')
  if (sqlite === undefined) {
    throw new InvalidOptionsError(
      `oncekey/sqlite needs Node 22.13 or newer, this is Node ${process.versions.node}`,
    )
  }
  return (path) => new sqlite.DatabaseSync(path)
}

function prepareWriter(db: DatabaseSync, { synchronous, table }: ConnectionOptions): void {
  // Only while starting, so that several processes may create the same file at once.
  db.exec(`PRAGMA busy_timeout = ${BUSY_MS_MAX}`)
  // The busy timeout does not cover the change of the journal: it needs the file to itself.
  const mode = blockWhileBusy(() => db.prepare('PRAGMA journal_mode = WAL').get())
  if (mode?.['journal_mode'] !== 'wal') {
    throw new InvalidOptionsError(
      'the file system cannot share memory between processes, which SQLite needs for its ' +
        'write-ahead log: keep the file on a local disk',
    )
  }
  db.exec(`PRAGMA synchronous = ${synchronous}`)
  db.exec(`PRAGMA wal_autocheckpoint = ${CHECKPOINT_PAGES}`)
  db.exec('PRAGMA foreign_keys = ON')
  migrate(db, table, systemClock.nowMs())
}

function track(opened: DatabaseSync[], db: DatabaseSync): DatabaseSync {
  opened.push(db)
  return db
}

function openFailed(path: string, error: unknown): OncekeyError {
  if (error instanceof OncekeyError) return error
  const isFolderFault = error instanceof Error && 'syscall' in error
  if (!isFolderFault && !isUnusableFile(error)) return storeFailed('open', error)
  const { message } = error as Error
  return new InvalidOptionsError(
    `sqliteStore: path ${JSON.stringify(path)} cannot be used: ${message}`,
    { cause: error },
  )
}
