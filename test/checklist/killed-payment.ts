/** A payment whose process was killed (kill -9) right after a permanent change. */
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { onTestFinished } from 'vitest'
import { Acquirer } from '../process/payment/ledgers.ts'
import type { Program } from '../process/payment/programs.ts'
import { problemsOf } from '../process/payment/recovery.ts'
import { openScene, type RecoveryOptions } from '../process/payment/scene.ts'

export interface KilledPayment {
  readonly charges: number
  readonly record: Record<string, unknown> | undefined
  /** The problems after a full recovery. Works on a copy, so it can be called several times. */
  readonly problemsAfter: (how: RecoveryOptions) => Promise<readonly string[]>
}

/**
 * `charged`: the provider has charged, and the charge is not recorded. `recorded`: its result is
 * committed, and no later step has run.
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
  if (killed.trace !== undefined) throw new Error(`the process was not killed at ${at + 1}`)
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
