import { callStore } from '../core/store/store-call.ts'
import type { DurableStore } from '../core/store/durable-store.ts'
import type { Engine } from '../core/engine/engine-contract.ts'
import { InvalidOptionsError } from '../core/errors.ts'
import { describe } from '../core/options.ts'

/** Workers, relays and operators can wait longer for the store than a request, but not for ever. */
export const STORE_TIMEOUT_MS = 10_000

export function checkEngine(where: string, engine: Engine): void {
  const isEngine =
    typeof engine === 'object' && engine !== null && typeof engine.emit === 'function'
  if (isEngine) return
  throw new InvalidOptionsError(
    `${where}.engine must be an engine from createEngine(), got ${describe(engine)}`,
  )
}

/** The part of the engine's store for operations, messages and acts. Throws if it has none. */
export function durableOf(where: string, engine: Engine): DurableStore {
  checkEngine(where, engine)
  const { durable, name } = engine.store
  if (durable !== undefined) return durable
  throw new InvalidOptionsError(
    `${where}: the store "${name}" keeps no operations; use sqliteStore, postgresStore or ` +
      'mysqlStore',
  )
}

/** A store call with a time limit. A failure is emitted as `store_error` and thrown. */
export async function askStore<Answer>(
  engine: Engine,
  call: string,
  ask: (signal: AbortSignal) => Promise<Answer>,
): Promise<Answer> {
  const { clock, store } = engine
  const details = { store: store.name, call, timeoutMs: STORE_TIMEOUT_MS }
  try {
    return await callStore(clock, details, ask)
  } catch (error) {
    engine.emit({ kind: 'store_error', store: store.name, call, error })
    throw error
  }
}

/** The clock by which the store writes its timestamps. */
export async function storeTimeMs(engine: Engine): Promise<number> {
  const { store, clock } = engine
  if (store.now === undefined) return clock.nowMs()
  const now = await askStore(engine, 'now', (signal) => store.now!(signal))
  return now.getTime()
}
