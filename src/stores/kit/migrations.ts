/**
 * How the SQL stores record, in their table of migrations, which versions of the package may use
 * their tables. The rules for migrations are in `docs/internals/schema-changes.md`.
 *
 * - The highest number: a node must know this migration to use the tables.
 * - A negative number: the migration with that number, without the sign, was applied. Migration 1
 *   is recorded as 1, as the first release did.
 *
 * The first release reads only the highest number and rejects a number that it does not know. So it
 * starts on the tables of every later version that it can use, and rejects the others.
 */
import { InvalidOptionsError } from '../../core/errors.ts'

/** A change of the tables. Its number is its position in the list, from 1. */
export interface Migration {
  /**
   * Number of a migration: nodes that know it can use the changed tables, and older nodes cannot.
   * Never lower than in the migration before.
   */
  readonly runsFrom: number
}

/** The lowest and the highest number in the table of migrations; both are 0 if it has no rows. */
export interface MigrationNumbers {
  readonly lowest: number
  readonly highest: number
}

/**
 * How many of the `known` migrations were applied. Throws if a newer version has changed the tables
 * so that a node that knows only these migrations must not use them.
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

/** The numbers that are written into the table of migrations for one migration. */
export interface MigrationRecord {
  /** Written before the tables change, so that older nodes can no longer start on them. */
  readonly before: number | undefined
  /** Written with the change or after it. */
  readonly after: number
}

export function migrationRecord(migrations: readonly Migration[], number: number): MigrationRecord {
  if (number === 1) return { before: undefined, after: 1 }
  const [previous, { runsFrom }] = [migrations[number - 2]!, migrations[number - 1]!]
  return { before: runsFrom > previous.runsFrom ? runsFrom : undefined, after: -number }
}
