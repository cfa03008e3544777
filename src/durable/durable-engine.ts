import { answerWithin } from '../core/answer-within.ts'
import type { DurableStore } from '../core/durable-store.ts'
import type { Engine } from '../core/engine-contract.ts'
import { InvalidOptionsError } from '../core/errors.ts'
import { describe } from '../core/options.ts'

/** What works beside requests can wait longer than a request, but not for ever. */
export const STORE_TIMEOUT_MS = 10_000

/** What the engine's store keeps beside its records. Throws where it has nothing of the kind. */
export function durableOf(where: string, engine: Engine): DurableStore {
  const isEngine =
    typeof engine === 'object' && engine !== null && typeof engine.emit === 'function'
  if (!isEngine) {
    throw new InvalidOptionsError(
      `${where}.engine must be what createEngine() returns, got ${describe(engine)}`,
    )
  }
  const { durable, name } = engine.store
  if (durable !== undefined) return durable
  throw new InvalidOptionsError(
    `${where}: the store "${name}" keeps no operations; use sqliteStore, postgresStore or ` +
      'mysqlStore',
  )
}

/** A store call beside the engine's own: given up in time, and its failure reported, like those. */
export async function askStore<Answer>(
  engine: Engine,
  call: string,
  ask: (signal: AbortSignal) => Promise<Answer>,
): Promise<Answer> {
  const { clock, store } = engine
  const details = { store: store.name, call, timeoutMs: STORE_TIMEOUT_MS }
  try {
    return await answerWithin(clock, details, ask)
  } catch (error) {
    engine.emit({ kind: 'store_error', store: store.name, call, error })
    throw error
  }
}

/** The time by which the store has written its own times. */
export async function storeTimeMs(engine: Engine): Promise<number> {
  const { store, clock } = engine
  if (store.now === undefined) return clock.nowMs()
  const now = await askStore(engine, 'now', (signal) => store.now!(signal))
  return now.getTime()
}
