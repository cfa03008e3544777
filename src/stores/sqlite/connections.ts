import { mkdirSync } from 'node:fs'
import type { DatabaseSync } from 'node:sqlite'
import { dirname } from 'node:path'
import { systemClock } from '../../core/clock.ts'
import { InvalidOptionsError, OncekeyError } from '../../core/errors.ts'
import { blockWhileBusy, BUSY_MS_MAX, isUnusableFile, storeFailed } from './failures.ts'
import { migrate } from './migrations.ts'

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

/** Opens the file, and makes the folder, the file and the tables where they are missing. */
export function openConnections(options: ConnectionOptions): Connections {
  const open = databaseOpener()
  const opened: DatabaseSync[] = []
  try {
    mkdirSync(dirname(options.path), { recursive: true })
    const writer = track(opened, open(options.path))
    prepareWriter(writer, options)
    const reader = track(opened, open(options.path))
    reader.exec('PRAGMA query_only = ON')
    for (const db of opened) db.exec('PRAGMA busy_timeout = 0')
    return { writer, reader }
  } catch (error) {
    for (const db of opened) db.close()
    throw openFailed(options.path, error)
  }
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
