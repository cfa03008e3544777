/**
 * The reference service under fire, on every store: real processes are killed, stalled and cut off,
 * and nothing may happen twice, differently, not at all, for ever, or to somebody else. The seed is
 * another one each time; `npm run chaos -- --store … --seed … --seconds 20` tries the same again.
 */
import { randomInt } from 'node:crypto'
import { expect, it } from 'vitest'
import { STORES } from '../../chaos/arguments.ts'
import type { Report } from '../../chaos/report.ts'
import { runChaos } from './run-chaos.ts'

const SEED = randomInt(2 ** 32)
/** For the run, its healing within a minute and a half, and a machine that is busy. */
const TIMEOUT_MS = 180_000

it.each(STORES)(
  `keeps its promises on %s for 20 seconds of chaos, seed ${SEED}`,
  async (store) => {
    const { code, output, report } = await runChaos(
      ...['--store', store, '--seed', `${SEED}`, '--seconds', '20', '--heal-seconds', '100'],
    )
    expect(code, `\n${output}`).toBe(0)
    // Nothing goes wrong in a run in which nothing was done, either.
    expect(report!.done['stories'], `\n${output}`).toBeGreaterThan(10)
    expect(report!.done['hot keys'], `\n${output}`).toBeGreaterThan(0)
    expect(Object.keys(report!.mischief).length, `\n${output}`).toBeGreaterThan(4)
    expectNeighbours(report!, output)
  },
  TIMEOUT_MS,
)

/**
 * Each of the bad neighbours was at work. How much of it they did is left to the seed: a database
 * that is killed and silenced for most of the run keeps them out as well.
 */
function expectNeighbours({ neighbours }: Report, output: string): void {
  for (const work of ['accepted of the flood', 'hanging operations', 'endless messages']) {
    expect(neighbours[work], `${work}\n${output}`).toBeGreaterThan(0)
  }
}
