import { expect, it, onTestFinished, vi } from 'vitest'
import { choiceLines } from '../../bench/groups/choices.ts'
import { engineLines } from '../../bench/groups/engine.ts'
import { httpLines } from '../../bench/groups/http.ts'
import { limitLines } from '../../bench/groups/limits.ts'
import { networkLines } from '../../bench/groups/network.ts'
import { peerLines } from '../../bench/groups/peers.ts'
import { relayLines } from '../../bench/groups/relay.ts'
import { PANELS } from '../../bench/report/panels.ts'
import { wrongReferences } from '../../bench/report/references.ts'
import { TARGETS } from '../../bench/report/targets.ts'
import type { Context, Line } from '../../bench/run/context.ts'
import { HttpSubject } from '../../bench/run/http-subject.ts'
import { FULL } from '../../bench/run/scale.ts'

const GROUPS = [
  engineLines,
  networkLines,
  httpLines,
  peerLines,
  limitLines,
  choiceLines,
  relayLines,
]

// A wrong name would leave a target without a verdict. Growth is left out: it fills its tables
// first, and a complete run checks its names before it measures.
it('the groups have the lines that targets, charts and other lines name', async () => {
  const proof = vi.spyOn(HttpSubject.prototype, 'prove').mockResolvedValue()
  onTestFinished(() => proof.mockRestore())
  const lines: Line[] = []
  for (const open of GROUPS) {
    lines.push(...(await open(contextWithoutPrograms())))
  }
  const wrong = wrongReferences({ lines, targets: TARGETS, panels: PANELS })
  expect(wrong.filter((id) => !id.startsWith('growth.'))).toEqual([])
  expect(proof.mock.calls.length).toBe(lines.filter(isFirstOfItsServer).length)
})

/** Checks each server once, for all its measurements. */
function isFirstOfItsServer({ id }: Line): boolean {
  return /^(http|peers\.express)\..*\.first\.64$/.test(id)
}

function contextWithoutPrograms(): Context {
  const program = { info: { port: 0, forgets: false }, call: async () => ({}) }
  const context = {
    scale: FULL,
    servers: { places: async () => ({ folder: '' }) },
    start: async () => program,
  }
  return context as unknown as Context
}
