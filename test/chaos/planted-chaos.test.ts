/**
 * Checks the checker: each bug is planted into the processes of the service, and a run must find
 * it, by the name that it has there.
 *
 * `no-fence` is not among them. In this service nothing shows without the fence: each phase is on
 * record once, and its rows have states of their own. The simulation finds it where nothing else
 * stands behind it: "the fence is removed" in `test/simulation/planted-bugs.test.ts`.
 */
import { expect, it } from 'vitest'
import type { ViolationKind } from '../../chaos/check/facts.ts'
import type { PlantName } from '../../chaos/plant/plants.ts'
import { runChaos } from './run-chaos.ts'

interface Planted {
  readonly plant: PlantName
  readonly found: ViolationKind
  readonly detail: RegExp
}

const PLANTED: readonly Planted[] = [
  { plant: 'no-tenant', found: 'leak', detail: /other tenant|which is the one of story/ },
  { plant: 'early-ack', found: 'lost', detail: /was told that it is done, and then/ },
  {
    plant: 'shared-answer',
    found: 'divergence',
    detail: /answered another request under the key with|did not recognise the request of the key/,
  },
  { plant: 'lapse-reruns-effect', found: 'duplicate', detail: /provider has (2|two) effects/ },
]

/** It ends at the first violation; most of the time is the start. */
const TIMEOUT_MS = 180_000

it.each(PLANTED)(
  'finds $plant, as $found',
  async ({ plant, found, detail }) => {
    const { code, output, report } = await runChaos(
      ...['--store', 'sqlite', '--seconds', '120', '--plant', plant, '--until-violation'],
    )
    expect(code, `\n${output}`).toBe(1)
    expect(report!.samples, `\n${output}`).toContainEqual(
      expect.objectContaining({ kind: found, detail: expect.stringMatching(detail) }),
    )
  },
  TIMEOUT_MS,
)
