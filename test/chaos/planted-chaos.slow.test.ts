// Takes about 40 s.
/**
 * Tests the chaos runs: each bug is planted into the processes of the service, and a run must find
 * it as the expected kind of violation.
 *
 * `no-fence` is not among them, because this service works without the fence: each phase is on
 * record once, and its rows have their own states. The simulation finds it with plain handlers:
 * "the fence is removed" in `test/simulation/planted-bugs.slow.test.ts`.
 */
import { expect, it } from 'vitest'
import type { ViolationKind } from '../../chaos/check/facts.ts'
import type { Comparison } from '../../chaos/comparison.ts'
import type { PlantName } from '../../chaos/plant/plants.ts'
import { runChaos } from './run-chaos.ts'

interface Planted {
  readonly plant: PlantName
  /** The kinds of violation as which the bug may be found first, because the run ends there. */
  readonly found: readonly ViolationKind[]
  readonly detail: RegExp
}

const PLANTED: readonly Planted[] = [
  { plant: 'no-tenant', found: ['leak'], detail: /other tenant|which belongs to story/ },
  {
    plant: 'early-ack',
    found: ['lost', 'divergence'],
    detail: /got a success, and then|after the final/,
  },
  {
    plant: 'shared-answer',
    found: ['divergence'],
    detail: /answered another request under the key with|did not recognise the request of the key/,
  },
  { plant: 'lapse-reruns-effect', found: ['duplicate'], detail: /provider has (2|two) effects/ },
]

/** A run ends at the first violation; most of the time is the start. */
const TIMEOUT_MS = 180_000

it.each(PLANTED)(
  'a chaos run finds the planted bug $plant',
  async ({ plant, found, detail }) => {
    const { code, output, report } = await runChaos(
      ...['--store', 'sqlite', '--seconds', '120', '--plant', plant, '--until-violation'],
      // Bad neighbours would only slow the run down.
      ...['--neighbours', 'off'],
    )
    expect(code, `\n${output}`).toBe(1)
    const named = report!.samples.filter((one) => found.includes(one.kind))
    expect(named, `\n${output}`).toContainEqual(
      expect.objectContaining({ detail: expect.stringMatching(detail) }),
    )
  },
  TIMEOUT_MS,
)

/** The comparison takes two complete runs, which is too long for `npm test`. */
const COMPARED = process.env['ONCEKEY_TEST_FULL'] === '1' ? (['no-turns'] as const) : []

it.each(COMPARED)(
  'a comparison finds that other tenants wait too long with the planted bug %s',
  async (plant) => {
    const { code, output, report } = await runChaos<Comparison>(
      ...['--store', 'sqlite', '--seconds', '40', '--heal-seconds', '100', '--plant', plant],
      ...['--neighbours', 'compare'],
    )
    expect(code, `\n${output}`).toBe(1)
    const { without, with: withThem, waiting } = report!
    expect(without.ok, `\n${output}`).toBe(true)
    const tooLong = waiting.filter(({ ok }) => !ok).map(({ kind }) => kind)
    // Work behind the hanging work may not end at all.
    const stuck = withThem.violations['stuck'] === 0 ? [] : ['accepted work']
    expect([...tooLong, ...stuck], `\n${output}`).toContain('accepted work')
  },
  2 * TIMEOUT_MS,
)
