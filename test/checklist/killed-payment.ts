/** A payment whose process was killed (kill -9) right after something that it did for good. */
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { onTestFinished } from 'vitest'
import { Acquirer } from '../process/payment-ledgers.ts'
import type { Program } from '../process/payment-programs.ts'
import { problemsOf } from '../process/payment-recovery.ts'
import { openScene, type How } from '../process/payment-scene.ts'

export interface KilledPayment {
  readonly charges: number
  readonly record: Record<string, unknown> | undefined
  /** What is wrong when all is done that there was left to do; on a copy, so more than once. */
  readonly problemsAfter: (how: How) => Promise<readonly string[]>
}

/**
 * `charged`: the provider has charged, and nobody has written that down. `recorded`: its result is
 * committed, and nothing is done with it yet.
 */
export async function killPayment(
  program: Program,
  after: 'charged' | 'recorded',
): Promise<KilledPayment> {
  const scene = await openScene()
  onTestFinished(scene.remove)
  const { trace } = await scene.run(scene.fresh, program, 0)
  const marks = trace!.marks
  const charged = marks.findIndex(({ what }) => what === 'charged')
  const { at } = marks[after === 'charged' ? charged : charged + 1]!
  const killed = await scene.run(scene.fresh, program, at + 1)
  if (killed.trace !== undefined) throw new Error(`it was not killed at ${at + 1}`)
  const file = new DatabaseSync(join(killed.folder, 'test.db'), { readOnly: true })
  const record = file.prepare('SELECT state, recovery_point FROM oncekey_record').get()
  file.close()
  return {
    charges: new Acquirer(killed.folder, { dedups: false }).charges.length,
    record,
    problemsAfter: async (how) =>
      problemsOf(await scene.recover(killed, how), { told: killed.told, isDelivered: false }),
  }
}
