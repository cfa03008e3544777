import type { RequestHandler } from 'express'
import type { Engine } from 'oncekey'

/** The process answers, so it is alive. Checks no database, which a restart would not repair. */
export const showAlive: RequestHandler = (_req, res) => {
  res.json({ status: 'ok' })
}

/** Whether to send requests here: not while the database takes no writes, nor during shutdown. */
export function showReady(engine: Engine, stopping: AbortSignal): RequestHandler {
  return async (_req, res) => {
    const status = stopping.aborted ? 'closing' : (await engine.health()).status
    const isReady = status === 'ready' || status === 'degraded'
    res.status(isReady ? 200 : 503).json({ status })
  }
}
