import type { Database, Query } from './database.ts'

/**
 * Databases agree on INSERT, but not on how to ignore a row that is there. So the duplicate is
 * tried and its error read, which every one of them has a code for.
 */
export function insertOnceWith(
  query: Query,
  isDuplicate: (error: unknown) => boolean,
): Database['insertOnce'] {
  return async (sql, values) => {
    try {
      await query(sql, values)
      return true
    } catch (error) {
      if (isDuplicate(error)) return false
      throw error
    }
  }
}
