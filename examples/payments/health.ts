import { setTimeout as sleep } from 'node:timers/promises'
import type { RequestHandler } from 'express'
import type { Database } from './database/database.ts'

/** It answers, so it is alive. Nothing else is asked: a restart would not heal a database. */
export const showAlive: RequestHandler = (_req, res) => {
  res.json({ status: 'ok' })
}

/** Shorter than any probe waits. */
const ANSWER_MS = 1_000

/** Whether to send requests here: not while the database is silent, nor while the process stops. */
export function showReady(database: Database, stopping: AbortSignal): RequestHandler {
  return async (_req, res) => {
    const status = stopping.aborted ? 'stopping' : await askDatabase(database)
    res.status(status === 'ready' ? 200 : 503).json({ status })
  }
}

async function askDatabase(database: Database): Promise<'ready' | 'database_unavailable'> {
  const answered = database.query('SELECT 1').then(
    () => 'ready' as const,
    () => 'database_unavailable' as const,
  )
  const late = sleep(ANSWER_MS, 'database_unavailable' as const, { ref: false })
  return Promise.race([answered, late])
}
