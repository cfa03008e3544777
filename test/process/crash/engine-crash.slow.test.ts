// Takes about 30 s.
import { describe, expect, it } from 'vitest'
import { MODES, type Mode, type Point } from './crash-points.ts'
import { keyOf, leftAlone, openScene, repeatWhile, type Scene } from './crash-scene.ts'
import type { WorkerProcess } from '../worker-process.ts'

// A process is killed (kill -9) at a named point of its run. Another process, which was running all
// the time or is started afterwards, gets the retry.

interface Answer {
  readonly key: string
  readonly kind: string
  readonly result?: string
}

const setup = () => openScene('crash/crash-worker.ts')

async function ask(worker: WorkerProcess, mode: Mode): Promise<Answer> {
  const before = worker.lines.length
  worker.tell(`${mode} ${keyOf(mode)}`)
  await worker.written(before + 1)
  return JSON.parse(worker.lines[before]!) as Answer
}

/** Asks until the key is no longer in progress, as a client does. */
const askOn = (worker: WorkerProcess, mode: Mode): Promise<Answer> =>
  repeatWhile(
    () => ask(worker, mode),
    ({ kind }) => kind === 'in_progress',
  )

/** Starts one run of each mode, and kills the process when each has reached its point. */
async function crash(scene: Scene, point: Point, witness: WorkerProcess | undefined) {
  const victim = await scene.start(point)
  for (const mode of MODES) {
    expect(await ask(victim, mode)).toEqual({ at: point })
    if (witness === undefined) continue
    expect(await ask(witness, mode)).toMatchObject({ kind: 'in_progress' })
  }
  await victim.kill()
}

describe.each(['claimed', 'entered', 'acted'] as const)(
  'a process killed when it has %s',
  (point) => {
    const effectsBefore = point === 'acted' ? 1 : 0

    it('leaves keys that the next request handles by their lapse policies', async () => {
      const scene = setup()
      const survivor = await scene.start('nowhere')
      await crash(scene, point, survivor)

      expect((await askOn(survivor, 'plain')).kind).toBe('unknown')
      expect((await ask(survivor, 'plain')).kind).toBe('unknown')
      expect(scene.effectsOf('plain')).toHaveLength(effectsBefore)

      const rerun = await askOn(survivor, 'rerun')
      expect(rerun.kind).toBe('ran')
      const sent = scene.effectsOf('rerun')
      expect(sent).toHaveLength(effectsBefore + 1)
      // The provider gets the same downstream key, so it recognises the payment.
      expect(new Set(sent).size).toBe(1)

      const transaction = await askOn(survivor, 'transaction')
      expect(transaction.kind).toBe('ran')
      expect(scene.rowsOf('transaction')).toEqual([transaction.result])

      expect(await ask(survivor, 'rerun')).toEqual({ ...rerun, kind: 'replayed' })
      expect(await ask(survivor, 'transaction')).toEqual({ ...transaction, kind: 'replayed' })
      expect(await scene.operator.list({ state: 'in_progress' })).toEqual([])
    })

    it('leaves keys that a sweep releases without a further request', async () => {
      const scene = setup()
      await crash(scene, point, undefined)
      const restarted = await scene.start('nowhere', 100)

      const records = await Promise.all(MODES.map((mode) => leftAlone(scene, mode)))
      const states = records.map(({ state }) => state)
      expect(states).toEqual(['unknown', 'failed_retryable', 'failed_retryable'])
      expect(scene.rowsOf('transaction')).toEqual([])

      await resolveHonestly(scene)
      const plain = await ask(restarted, 'plain')
      expect(plain.kind).toBe(effectsBefore === 1 ? 'replayed' : 'ran')
      expect(scene.effectsOf('plain')).toHaveLength(1)
      const transaction = await ask(restarted, 'transaction')
      expect(scene.rowsOf('transaction')).toEqual([transaction.result])
    })
  },
)

/** The verdicts of an operator who has checked the provider's ledger. */
async function resolveHonestly(scene: Scene): Promise<void> {
  const { recordId } = await scene.recordOf('plain')
  const happened = scene.effectsOf('plain').length > 0
  const result = Buffer.from('found in the ledger')
  await scene.operator.resolve(
    { recordId },
    happened ? { kind: 'completed', result } : { kind: 'failed_retryable' },
  )
}

it('replays a result that was recorded before the kill although no reply was sent', async () => {
  const scene = setup()
  await crash(scene, 'recorded', undefined)
  const restarted = await scene.start('nowhere')

  for (const mode of MODES) {
    const { state, result } = await scene.recordOf(mode)
    expect([mode, state]).toEqual([mode, 'completed'])
    const recorded = Buffer.from(result!).toString()
    const answer = { key: keyOf(mode), kind: 'replayed', result: recorded }
    expect(await ask(restarted, mode)).toEqual(answer)
    if (mode === 'transaction') expect(scene.rowsOf(mode)).toEqual([recorded])
    else expect(scene.effectsOf(mode)).toHaveLength(1)
  }
})

it('replays every result that was acknowledged before the kill, byte for byte', async () => {
  const scene = setup()
  const victim = await scene.start('nowhere')
  const acknowledged: Answer[] = []
  for (const mode of MODES) acknowledged.push(await ask(victim, mode))
  await victim.kill()
  expect(acknowledged.map(({ kind }) => kind)).toEqual(['ran', 'ran', 'ran'])

  const restarted = await scene.start('nowhere')
  for (const [index, mode] of MODES.entries()) {
    expect(await ask(restarted, mode)).toEqual({ ...acknowledged[index]!, kind: 'replayed' })
  }
  expect(scene.effectsOf('plain')).toHaveLength(1)
  expect(scene.effectsOf('rerun')).toHaveLength(1)
  expect(scene.rowsOf('transaction')).toEqual([acknowledged[2]!.result])
})
