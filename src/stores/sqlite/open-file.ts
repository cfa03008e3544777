import { statSync } from 'node:fs'
import { resolve } from 'node:path'

/** Device and inode. No other file can have both while a connection has this one open. */
export interface FileIdentity {
  readonly dev: bigint
  readonly ino: bigint
}

/** The files that SQLite keeps open beside the database: its log, and the index of that log. */
const COMPANIONS = ['-wal', '-shm'] as const

const WHAT_TO_DO =
  'The store refuses all calls, because another process would use other records. Stop every ' +
  'process that has the database open, put the right files in place, and start them again'

interface Part {
  readonly path: string
  readonly identity: FileIdentity
}

/** The file at `path`, or `undefined` where there is none. */
export function identityAt(path: string): FileIdentity | undefined {
  return statSync(path, { bigint: true, throwIfNoEntry: false })
}

export function isSameFile(one: FileIdentity | undefined, other: FileIdentity | undefined) {
  return one !== undefined && other !== undefined && one.ino === other.ino && one.dev === other.dev
}

/**
 * The files that a store has open, and whether their paths still lead to them. A connection goes on
 * with a file that was deleted or replaced: its commits succeed, and no other process sees them.
 * SQLite notices this with a rollback journal, but not with a write-ahead log.
 */
export class OpenFile {
  readonly #parts: readonly Part[]
  #isSuspect = false

  /** `file` is the name by which SQLite has opened `path`: symbolic links are resolved in it. */
  constructor(path: string, file: string) {
    // Absolute: the process may change its working directory.
    const paths = [resolve(path), ...COMPANIONS.map((suffix) => `${file}${suffix}`)]
    this.#parts = paths.map((part) => {
      const identity = identityAt(part)
      if (identity === undefined) throw new Error(`${JSON.stringify(part)} is missing`)
      return { path: part, identity: { dev: identity.dev, ino: identity.ino } }
    })
  }

  /** Of the database itself. */
  get identity(): FileIdentity {
    return this.#parts[0]!.identity
  }

  /**
   * Throws where a path leads to another file, or to none. Called after a commit or a read and
   * before its answer: what is acknowledged was then in the file that other processes open. Three
   * `stat` calls take 5 µs; a directory's change time would take one, but is too coarse to trust.
   */
  check(): void {
    this.#isSuspect = true
    for (const { path, identity } of this.#parts) {
      const found = identityAt(path)
      if (!isSameFile(found, identity)) throw new Error(whatHappened(path, found !== undefined))
    }
    this.#isSuspect = false
  }

  /** Before a write: after a check that failed, nothing more is written until one succeeds. */
  checkIfSuspect(): void {
    if (this.#isSuspect) this.check()
  }
}

function whatHappened(path: string, isReplaced: boolean): string {
  const file = JSON.stringify(path)
  return isReplaced
    ? `another file has taken the place of ${file} while the store had it open. ${WHAT_TO_DO}`
    : `${file} was deleted or moved while the store had it open. ${WHAT_TO_DO}`
}
