/** The SQLite file of the killed processes, and the outside effects that they had. */
import { readFileSync, writeFileSync } from 'node:fs'
import { DatabaseSync } from 'node:sqlite'
import { onTestFinished } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { RecordView } from '../../../src/core/store/store.ts'
import { sqliteStore } from '../../../src/stores/sqlite/index.ts'
import { scratchFolder } from '../../stores/scratch-folder.ts'
import type { Mode, Point } from './crash-points.ts'
import { startWorker } from '../worker-process.ts'

export const keyOf = (mode: Mode): string => `key-${mode}`

/** Limit for events that must happen without a request: far more than lease and sweep. */
const BOUND_MS = 15_000

export function openScene(workerFile: string) {
  const folder = scratchFolder()
  onTestFinished(folder.remove)
  const path = folder.file('records.db')
  const effectsPath = folder.file('effects.log')
  writeFileSync(effectsPath, '')
  const app = new DatabaseSync(path)
  app.exec('CREATE TABLE payment (key TEXT, result TEXT)')
  onTestFinished(() => app.close())
  const store = sqliteStore({ path })
  onTestFinished(() => store.close())
  const operator = createEngine({ store, sweepEveryMs: 0, reapEveryMs: 0 })

  return {
    operator,
    start: async (point: Point | 'nowhere', sweepEveryMs = 0) => {
      const worker = startWorker(workerFile, [path, effectsPath, point, `${sweepEveryMs}`])
      await worker.written(1)
      return worker
    },
    /** The downstream keys that were sent outside under a key, one for each effect. */
    effectsOf: (mode: Mode): string[] =>
      readFileSync(effectsPath, 'utf8')
        .split('\n')
        .filter((line) => line.startsWith(`${keyOf(mode)} `))
        .map((line) => line.split(' ')[1]!),
    /** The results of the business rows that were committed under a key. */
    rowsOf: (mode: Mode): unknown[] =>
      app
        .prepare('SELECT result FROM payment WHERE key = ?')
        .all(keyOf(mode))
        .map((row) => row['result']),
    recordOf: async (mode: Mode): Promise<RecordView> => {
      const target = { scope: { tenant: 't', operation: mode }, key: keyOf(mode) }
      return (await operator.read(target))!
    },
  }
}

export type Scene = ReturnType<typeof openScene>

/** Polls until a record has left `in_progress`, without a claim that would move it. */
export async function leftAlone(scene: Scene, mode: Mode): Promise<RecordView> {
  return repeatWhile(
    () => scene.recordOf(mode),
    ({ state }) => state === 'in_progress',
  )
}

/** The first answer that is not `isEarly`, or the last answer after the time limit. */
export async function repeatWhile<Answer>(
  ask: () => Promise<Answer>,
  isEarly: (answer: Answer) => boolean,
): Promise<Answer> {
  const deadlineMs = performance.now() + BOUND_MS
  for (;;) {
    const answer = await ask()
    if (!isEarly(answer) || performance.now() > deadlineMs) return answer
    await new Promise((resolve) => setTimeout(resolve, 25))
  }
}
