/**
 * A process that runs work through the engine, on one SQLite file, for the keys on its input. An
 * argument can make it stop at one point, where the test kills it.
 */
import { randomUUID } from 'node:crypto'
import { createInterface } from 'node:readline'
import { createEngine, type Engine, type RunContext } from '../../../src/index.ts'
import { sqliteStore, type SqliteTransaction } from '../../../src/stores/sqlite/index.ts'
import {
  LEASE_MS,
  StopPoint,
  actOutside,
  report,
  stoppingStore,
  type Mode,
} from './crash-points.ts'

const [path, effectsPath, point, sweepEveryMs] = process.argv.slice(2)
const still = new StopPoint(point!)
const engine: Engine = createEngine({
  store: stoppingStore(sqliteStore({ path: path! }), still),
  leaseMs: LEASE_MS,
  sweepEveryMs: Number(sweepEveryMs),
  reapEveryMs: 0,
})

/** Every run has a different result, so that a replay can be distinguished from another run. */
const newResult = (mode: Mode): string => `${mode} ${randomUUID()}`

async function work(mode: Mode, context: RunContext): Promise<Uint8Array> {
  await still.at('entered')
  const result = newResult(mode)
  if (mode === 'transaction') {
    return context.transaction<SqliteTransaction>(async (tx) => {
      const insert = tx.prepare('INSERT INTO payment (key, result) VALUES (?, ?)')
      insert.run(context.key, result)
      await still.at('acted')
      return Buffer.from(result)
    })
  }
  actOutside(effectsPath!, `${context.key} ${context.downstreamKey()} ${result}`)
  await still.at('acted')
  return Buffer.from(result)
}

async function answer(mode: Mode, key: string): Promise<void> {
  const policy = engine.policy({ onLapse: mode === 'plain' ? 'unknown' : 'rerun' })
  const request = { scope: { tenant: 't', operation: mode }, key, fingerprint: 'f', policy }
  const outcome = await engine.run(request, (context) => work(mode, context))
  const result = 'result' in outcome ? Buffer.from(outcome.result).toString() : undefined
  report({ key, kind: outcome.kind, result })
}

report('ready')
for await (const line of createInterface({ input: process.stdin })) {
  const [mode, key] = line.split(' ')
  void answer(mode as Mode, key!)
}
