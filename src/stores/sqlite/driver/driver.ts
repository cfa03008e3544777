/** The database file: opens it, sets its pragmas, and detects that it was replaced or deleted. */
import { statSync } from 'node:fs'
import type { DatabaseSync, StatementSync } from 'node:sqlite'
import { resolve } from 'node:path'
import { InvalidOptionsError } from '../../../core/errors.ts'
import { blockWhileBusy, BUSY_MS_MAX } from '../failures.ts'
import { BEGIN_READ, COMMIT } from '../sql.ts'

export type OpenDatabase = (path: string) => DatabaseSync

/**
 * Looks `node:sqlite` up when a store is created, because an import would keep this module from
 * loading on a Node without it, where an application may use another store.
 */
export function databaseOpener(): OpenDatabase {
  const sqlite = process.getBuiltinModule?.('node:sqlite')
  if (sqlite === undefined) {
    throw new InvalidOptionsError(
      `oncekey/sqlite needs Node 22.13 or newer, this is Node ${process.versions.node}`,
    )
  }
  return (path) => new sqlite.DatabaseSync(path)
}

/**
 * Pages in the write-ahead log before a checkpoint moves them into the file: 64 MiB, sixteen times
 * SQLite's default. Keys are random, so a checkpoint moves pages from all parts of the indexes, and
 * with a longer log it moves each page less often. At 100,000 records a pair of writes takes a
 * tenth less time than with 16 MiB, and with 16 MiB a fifth less than with the default. The
 * trade-off: at full load the longest commit, the one with the checkpoint, takes 27 ms instead of
 * 17 ms, a quarter as often.
 */
const CHECKPOINT_PAGES = 16_000

export function setWriterPragmas(db: DatabaseSync, synchronous: 'full' | 'normal'): void {
  // Blocks only during start-up, so that several processes can create the same file at once.
  db.exec(`PRAGMA busy_timeout = ${BUSY_MS_MAX}`)
  // The busy timeout does not cover a change of the journal mode, which needs an exclusive lock.
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
}

/** Several reads of one snapshot, over one connection. */
export class ReadTransaction {
  readonly #begin: StatementSync
  readonly #end: StatementSync

  constructor(db: DatabaseSync) {
    this.#begin = db.prepare(BEGIN_READ)
    this.#end = db.prepare(COMMIT)
  }

  /** Must not be used within a transaction. */
  run<Result>(body: () => Result): Result {
    this.#begin.run()
    try {
      return body()
    } finally {
      this.#end.run()
    }
  }
}

/** Device and inode. No other file can have both while a connection has this one open. */
export interface FileIdentity {
  readonly dev: bigint
  readonly ino: bigint
}

/** `undefined` if no file is at `path`. */
export function identityAt(path: string): FileIdentity | undefined {
  return statSync(path, { bigint: true, throwIfNoEntry: false })
}

export function isSameFile(one: FileIdentity | undefined, other: FileIdentity | undefined) {
  return one !== undefined && other !== undefined && one.ino === other.ino && one.dev === other.dev
}

/** The files that SQLite keeps open beside the database: its log, and the index of that log. */
const COMPANIONS = ['-wal', '-shm'] as const

const WHAT_TO_DO =
  'The store refuses all calls, because another process would use other records. Stop every ' +
  'process that has the database open, put the right files in place, and start them again'

interface FilePart {
  readonly path: string
  readonly identity: FileIdentity
}

/**
 * The files that a store has open. Detects that a path leads to another file: a connection keeps
 * using a file that was deleted or replaced, its commits succeed, and no other process sees them.
 * SQLite detects this with a rollback journal, but not with a write-ahead log.
 */
export class OpenFile {
  readonly #parts: readonly FilePart[]
  #isSuspect = false

  /** `file` is the name under which SQLite has opened `path`, with symbolic links resolved. */
  constructor(path: string, file: string) {
    // Absolute, because the process may change its working directory.
    const paths = [resolve(path), ...COMPANIONS.map((suffix) => `${file}${suffix}`)]
    this.#parts = paths.map((part) => {
      const identity = identityAt(part)
      if (identity === undefined) throw new Error(`${JSON.stringify(part)} is missing`)
      return { path: part, identity: { dev: identity.dev, ino: identity.ino } }
    })
  }

  /** The identity of the database file itself. */
  get identity(): FileIdentity {
    return this.#parts[0]!.identity
  }

  /**
   * Throws if a path leads to another file, or to none. Runs after a commit or a read and before
   * its answer, so that every acknowledged answer comes from the file that other processes open.
   * Three `stat` calls take 5 µs; a directory's change time would take one, but is too coarse.
   */
  check(): void {
    this.#isSuspect = true
    for (const { path, identity } of this.#parts) {
      const current = identityAt(path)
      if (!isSameFile(current, identity)) {
        throw new Error(mismatchMessage(path, current !== undefined))
      }
    }
    this.#isSuspect = false
  }

  /** Runs before a write: after a failed check, nothing is written until a check succeeds. */
  checkIfSuspect(): void {
    if (this.#isSuspect) this.check()
  }
}

function mismatchMessage(path: string, isReplaced: boolean): string {
  const file = JSON.stringify(path)
  return isReplaced
    ? `another file replaced ${file} while the store had it open. ${WHAT_TO_DO}`
    : `${file} was deleted or moved while the store had it open. ${WHAT_TO_DO}`
}
