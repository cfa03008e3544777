/** The file that processes are killed on, and what the outside world has seen. */
import { readFileSync, writeFileSync } from 'node:fs'
import { DatabaseSync } from 'node:sqlite'
import { onTestFinished } from 'vitest'
import { createEngine } from '../../src/core/engine.ts'
import type { RecordView } from '../../src/core/store.ts'
import { sqliteStore } from '../../src/stores/sqlite/index.ts'
import { scratchFolder } from '../stores/scratch-folder.ts'
import type { Mode, Point } from './crash-points.ts'
import { startWorker } from './worker-process.ts'

export const keyOf = (mode: Mode): string => `key-${mode}`

/** How long anything may take that has to happen by itself: far more than lease + sweep. */
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
    /** The downstream keys that the outside world was sent under a key, one for each effect. */
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

/** Looks until a record has left `in_progress`, and asks nobody to move it. */
export async function leftAlone(scene: Scene, mode: Mode): Promise<RecordView> {
  return repeatWhile(
    () => scene.recordOf(mode),
    ({ state }) => state === 'in_progress',
  )
}

/** The first answer that is not `isEarly`; after a bounded time, whatever there is. */
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
