import { setTimeout as sleep } from 'node:timers/promises'
import type { Database } from './database.ts'

const PAUSE_MS = 500

/**
 * Nodes and their database often start together, so this waits for the database, with a limit:
 * the operator must see an error about a wrong address.
 */
export async function migrateWhenUp(database: Database, waitMs: number): Promise<void> {
  const untilMs = performance.now() + waitMs
  while (true) {
    try {
      return await database.migrate()
    } catch (error) {
      if (performance.now() + PAUSE_MS > untilMs) {
        const reason = reasonOf(error)
        throw new Error(`The database does not answer: ${reason}. Check DATABASE_URL.`, {
          cause: error,
        })
      }
    }
    await sleep(PAUSE_MS)
  }
}

/** The innermost cause is the most specific: "connect ECONNREFUSED 127.0.0.1:5432". */
function reasonOf(error: unknown): string {
  const [first] = error instanceof AggregateError ? (error.errors as unknown[]) : []
  const inner = first ?? (error instanceof Error ? error.cause : undefined)
  if (inner !== undefined) return reasonOf(inner)
  return error instanceof Error ? error.message : String(error)
}
