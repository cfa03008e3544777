/** Any subject, with the calls that measure it. */
import { randomUUID } from 'node:crypto'
import type { Figures } from '../report/results.ts'
import type { Load, Places, Program } from '../run/contract.ts'
import { measure } from '../run/measure.ts'
import { Counter, expectEqual, prove, type Subject } from '../run/subject.ts'
import { newKeys, oneOf } from '../run/work.ts'
import { openBareRedis } from '../subjects/bare-redis.ts'
import { openBatchedPostgres } from '../subjects/batched-postgres.ts'
import { openBatchedSqlite } from '../subjects/batched-sqlite.ts'
import { openDbos } from '../subjects/dbos.ts'
import { openLockFirst } from '../subjects/lock-first.ts'
import { openNodeIdempotency, type NodeIdempotencyStore } from '../subjects/node-idempotency.ts'
import { openOperation } from '../subjects/own-operation.ts'
import { openOwn } from '../subjects/own.ts'
import { openPowertools } from '../subjects/powertools.ts'
import { openSteadykey, type SteadykeyStore } from '../subjects/steadykey.ts'
import type { StoreName } from '../subjects/stores.ts'

/** Selects the subject. */
export type SubjectConfig =
  | {
      readonly kind: 'own'
      readonly store: StoreName
      readonly inTransaction?: boolean
      readonly fromJson?: boolean
      readonly singleCalls?: number
    }
  | { readonly kind: 'operation'; readonly phase: 'finish' | 'external' }
  | { readonly kind: 'steadykey'; readonly store: SteadykeyStore }
  | { readonly kind: 'node-idempotency'; readonly store: NodeIdempotencyStore }
  | {
      readonly kind:
        | 'powertools'
        | 'dbos'
        | 'batched-postgres'
        | 'batched-sqlite'
        | 'bare-redis'
        | 'lock-first'
    }

export type SubjectProgramConfig = SubjectConfig & { readonly places: Places }

export async function open(config: SubjectProgramConfig): Promise<Program> {
  const counter = new Counter()
  const subject = await openSubject(config, counter)
  await prove(subject, counter, randomUUID())
  return {
    calls: {
      first: (load: Load) => measureFirst(subject, counter, load),
      replay: (load: Load) => measureReplays(subject, counter, { ...load, keys: newKeys() }),
      hot: (load: Load) => measureReplays(subject, counter, { ...load, keys: [randomUUID()] }),
    },
    close: () => subject.close(),
  }
}

/** Requests under random keys: each runs the work, and is recorded before it counts. */
async function measureFirst(subject: Subject, counter: Counter, load: Load): Promise<Figures> {
  await subject.reset?.()
  let calls = 0
  const before = counter.runs
  const figures = await measure(() => {
    calls++
    return subject.run(randomUUID())
  }, load)
  expectEqual('runs of the work', counter.runs - before, calls)
  return figures
}

/** Requests under completed keys: none runs the work. */
async function measureReplays(
  subject: Subject,
  counter: Counter,
  { keys, ...load }: Load & { readonly keys: readonly string[] },
): Promise<Figures> {
  await subject.reset?.()
  await Promise.all(keys.map((key) => subject.run(key)))
  const before = counter.runs
  const figures = await measure(() => subject.run(oneOf(keys)), load)
  expectEqual('runs of the work', counter.runs - before, 0)
  return figures
}

function openSubject(config: SubjectProgramConfig, counter: Counter): Promise<Subject> {
  const { places } = config
  switch (config.kind) {
    case 'own':
      return openOwn(config, counter)
    case 'operation':
      return openOperation(config, counter)
    case 'steadykey':
      return openSteadykey(config.store, places, counter)
    case 'node-idempotency':
      return openNodeIdempotency(config.store, places, counter)
    case 'powertools':
      return openPowertools(places, counter)
    case 'dbos':
      return openDbos(places, counter)
    case 'batched-postgres':
      return openBatchedPostgres(places, counter)
    case 'batched-sqlite':
      return openBatchedSqlite(places, counter)
    case 'bare-redis':
      return openBareRedis(places, counter)
    case 'lock-first':
      return openLockFirst(places, counter)
  }
}
