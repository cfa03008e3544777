// Takes about 135 s.
/**
 * The reference service under disruptions, on every store: real processes are killed, stalled and
 * cut off, and no effect may be duplicate, diverging, lost, stuck or leaked. The seed is new in
 * each run; `npm run chaos -- --store … --seed … --seconds 20` repeats a run.
 */
import { randomInt } from 'node:crypto'
import { expect, it } from 'vitest'
import { STORES } from '../../chaos/arguments.ts'
import type { Report } from '../../chaos/report.ts'
import { runChaos } from './run-chaos.ts'

const SEED = randomInt(2 ** 32)
/** For the run, its recovery within a minute and a half, and a busy machine. */
const TIMEOUT_MS = 180_000

it.each(STORES)(
  `the service on %s passes 20 seconds of chaos, seed ${SEED}`,
  async (store) => {
    const { code, output, report } = await runChaos(
      ...['--store', store, '--seed', `${SEED}`, '--seconds', '20', '--heal-seconds', '100'],
    )
    expect(code, `\n${output}`).toBe(0)
    // A run without any work would have no violation either.
    expect(report!.done['stories'], `\n${output}`).toBeGreaterThan(10)
    expect(report!.done['hot keys'], `\n${output}`).toBeGreaterThan(0)
    expect(Object.keys(report!.disruption).length, `\n${output}`).toBeGreaterThan(4)
    expectNeighbours(report!, output)
  },
  TIMEOUT_MS,
)

/**
 * Each of the bad neighbours was active. The amount of their work depends on the seed: a database
 * that is down for most of the run stops them as well.
 */
function expectNeighbours({ neighbours }: Report, output: string): void {
  for (const work of ['accepted requests of the flood', 'hanging operations', 'endless messages']) {
    expect(neighbours[work], `${work}\n${output}`).toBeGreaterThan(0)
  }
}
