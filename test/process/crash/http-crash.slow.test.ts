// Takes about 24 s.
import { describe, expect, it } from 'vitest'
import { MODES, type Mode, type Point } from './crash-points.ts'
import { keyOf, leftAlone, openScene, repeatWhile, type Scene } from './crash-scene.ts'
import type { WorkerProcess } from '../worker-process.ts'

// A server is killed (kill -9) while it answers. The server that is started in its place gets the
// retry of the client whose connection broke.

const setup = () => openScene('crash/crash-server.ts')

interface Reply {
  readonly status: number
  readonly headers: Headers
  readonly body: string
}

async function post(server: WorkerProcess, mode: Mode, path: string = mode): Promise<Reply> {
  const response = await fetch(urlOf(server, path), requestOf(mode))
  const { status, headers } = response
  return { status, headers, body: await response.text() }
}

function urlOf(server: WorkerProcess, path: string): string {
  const { port } = JSON.parse(server.lines[0]!) as { port: number }
  return `http://127.0.0.1:${port}/${path}`
}

const requestOf = (mode: Mode): RequestInit => ({
  method: 'POST',
  headers: { 'Idempotency-Key': keyOf(mode), 'Content-Type': 'application/json' },
  body: '{"amountCents":1}',
})

const codeOf = ({ body }: Reply): unknown => (JSON.parse(body) as { code?: unknown }).code
const resultOf = ({ body }: Reply): unknown => (JSON.parse(body) as { result?: unknown }).result

const IN_PROGRESS = 'idempotency_key_in_progress'

/** Asks until the key is no longer in progress, as a client does. */
const postOn = (server: WorkerProcess, mode: Mode): Promise<Reply> =>
  repeatWhile(
    () => post(server, mode),
    (reply) => codeOf(reply) === IN_PROGRESS,
  )

/** Sends one request of each mode, and kills the server when each has reached its point. */
async function crash(scene: Scene, point: Point): Promise<void> {
  const victim = await scene.start(point)
  const heard: Promise<string>[] = []
  for (const [index, mode] of MODES.entries()) {
    heard.push(heardBy(post(victim, mode)))
    await victim.written(index + 2)
    // Duplicates get this answer even while the transaction of the key is open.
    if (point !== 'recorded') expect(codeOf(await post(victim, mode))).toBe(IN_PROGRESS)
  }
  await victim.kill()
  // No client has got a reply.
  expect(await Promise.all(heard)).toEqual(MODES.map(() => 'fetch failed'))
}

/** The error that the client of a killed server gets. Listens from the start. */
const heardBy = (reply: Promise<unknown>): Promise<string> =>
  reply.then(
    () => 'a reply',
    (error: unknown) => (error as Error).message,
  )

describe.each(['claimed', 'entered', 'acted'] as const)(
  'a server killed when it has %s',
  (point) => {
    const effectsBefore = point === 'acted' ? 1 : 0

    it('leaves keys that a retry to the next server handles by their route options', async () => {
      const scene = setup()
      await crash(scene, point)
      const restarted = await scene.start('nowhere')

      for (let retry = 0; retry < 2; retry++) {
        const plain = await postOn(restarted, 'plain')
        expect([plain.status, codeOf(plain)]).toEqual([409, 'idempotency_outcome_unknown'])
      }
      expect(scene.effectsOf('plain')).toHaveLength(effectsBefore)

      const rerun = await postOn(restarted, 'rerun')
      expect(rerun.status).toBe(201)
      const sent = scene.effectsOf('rerun')
      expect(sent).toHaveLength(effectsBefore + 1)
      expect(new Set(sent).size).toBe(1)

      const transaction = await postOn(restarted, 'transaction')
      expect(transaction.status).toBe(201)
      expect(scene.rowsOf('transaction')).toEqual([resultOf(transaction)])

      for (const [mode, first] of [
        ['rerun', rerun] as const,
        ['transaction', transaction] as const,
      ])
        expectReplay(await post(restarted, mode), first)
      expect(await scene.operator.list({ state: 'in_progress' })).toEqual([])
    })
  },
)

it('leaves keys that a sweep of the next server releases although no client retries', async () => {
  const scene = setup()
  await crash(scene, 'acted')
  await scene.start('nowhere', 100)
  const records = await Promise.all(MODES.map((mode) => leftAlone(scene, mode)))
  const states = records.map(({ state }) => state)
  expect(states).toEqual(['unknown', 'failed_retryable', 'failed_retryable'])
  expect(scene.effectsOf('plain')).toHaveLength(1)
  expect(scene.rowsOf('transaction')).toEqual([])
})

it('replays a reply that was recorded but not sent when the server was killed', async () => {
  const scene = setup()
  await crash(scene, 'recorded')
  const restarted = await scene.start('nowhere')
  for (const mode of MODES) {
    const reply = await post(restarted, mode)
    expect([reply.status, reply.headers.get('idempotent-replayed')]).toEqual([201, 'true'])
    expect(reply.headers.get('location')).toBe(`/payments/${String(resultOf(reply))}`)
    if (mode === 'transaction') expect(scene.rowsOf(mode)).toEqual([resultOf(reply)])
    else expect(scene.effectsOf(mode)).toHaveLength(1)
  }
})

it('replays every 2xx that was acknowledged before the kill, byte for byte', async () => {
  const scene = setup()
  const victim = await scene.start('nowhere')
  const acknowledged: Reply[] = []
  for (const mode of MODES) acknowledged.push(await post(victim, mode))
  await victim.kill()
  expect(acknowledged.map(({ status }) => status)).toEqual([201, 201, 201])

  const restarted = await scene.start('nowhere')
  for (const [index, mode] of MODES.entries()) {
    expectReplay(await post(restarted, mode), acknowledged[index]!)
  }
  expect(scene.effectsOf('plain')).toHaveLength(1)
  expect(scene.rowsOf('transaction')).toEqual([resultOf(acknowledged[2]!)])
})

function expectReplay(replay: Reply, first: Reply): void {
  expect(replay.headers.get('idempotent-replayed')).toBe('true')
  expect([replay.status, replay.body]).toEqual([first.status, first.body])
  for (const name of ['content-type', 'etag', 'location', 'idempotency-expires']) {
    expect([name, replay.headers.get(name)]).toEqual([name, first.headers.get(name)])
  }
}

it('never runs a request again after a kill within a reply too large to store', async () => {
  const scene = setup()
  const victim = await scene.start('sending')
  const response = await fetch(urlOf(victim, 'export'), requestOf('plain'))
  const heard = heardBy(response.text())
  await victim.written(2)
  await victim.kill()
  expect([response.status, await heard]).toEqual([200, 'terminated'])

  const restarted = await scene.start('nowhere')
  const replay = await post(restarted, 'plain', 'export')
  expect([replay.status, replay.headers.get('idempotent-body-elided')]).toEqual([200, 'true'])
  expect(scene.effectsOf('plain')).toHaveLength(1)
})
