/**
 * How the SQL stores say, in their table of migrations, which versions of the package may use
 * their tables. `docs/internals/schema-changes.md` has the rules that make it true.
 *
 * - The highest number: the migration that a node has to know to use the tables.
 * - A negative number: the migration of that number, without its sign, was applied. The first one
 *   was recorded as 1, before there were negative numbers.
 *
 * The first release reads the highest number alone and refuses one that it does not know. So it
 * starts on the tables of every later version that it may use, and refuses the others.
 */
import { InvalidOptionsError } from './errors.ts'

/** A change of the tables. Its number is its place in the list, from 1. */
export interface Migration {
  /**
   * The oldest nodes that work on the changed tables: those that know this migration. Never below
   * that of the migration before.
   */
  readonly runsFrom: number
}

/** The lowest and the highest number in the table of migrations; 0 and 0 where there is none. */
export interface MigrationNumbers {
  readonly lowest: number
  readonly highest: number
}

/**
 * How many of the `known` migrations were applied. Throws where the tables have been changed by a
 * newer version so that a node which knows only these must not use them.
 */
export function appliedMigrations(
  table: string,
  { lowest, highest }: MigrationNumbers,
  known: number,
): number {
  if (highest > known) {
    throw new InvalidOptionsError(
      `table ${table} was changed by a newer version of oncekey and needs one that knows ` +
        `migration ${highest}. This version knows ${known}: install the newer version again`,
    )
  }
  return Math.min(lowest < 0 ? -lowest : highest, known)
}

/** What is written into the table of migrations, around the migration of this number. */
export interface MigrationRecord {
  /** Before the tables change, so that no older node starts on them from then on. */
  readonly before: number | undefined
  /** With the change or after it. */
  readonly after: number
}

export function migrationRecord(migrations: readonly Migration[], number: number): MigrationRecord {
  if (number === 1) return { before: undefined, after: 1 }
  const [previous, { runsFrom }] = [migrations[number - 2]!, migrations[number - 1]!]
  return { before: runsFrom > previous.runsFrom ? runsFrom : undefined, after: -number }
}
