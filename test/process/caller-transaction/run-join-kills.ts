import { expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { Tool } from '../../stores/caller-transaction/join-tools.ts'
import { told, type JoinDatabase } from '../../stores/run-join-cases.ts'
import { seededRandom } from '../random.ts'
import { startWorker } from '../worker-process.ts'

export interface KillDatabase extends JoinDatabase {
  readonly url: string
  readonly tool: () => Tool
  /** Waits until the database has ended the transactions of killed processes. */
  readonly buried: () => Promise<void>
  /** Whether a worker has an open transaction. */
  readonly isOpen: () => Promise<boolean>
}

const KILL_ROUNDS = 5
const SCOPE = { tenant: 'acme', operation: 'pay' }
const requestOf = (key: string) => ({ scope: SCOPE, key, fingerprint: 'f' })

const OUTCOMES = {
  claimed: false,
  begun: false,
  paid: false,
  completed: false,
  // The COMMIT was sent: it may have arrived or not.
  committing: undefined,
  committed: true,
  told: true,
} as const

/** Kills processes that complete a key in their own transaction. */
export function runJoinKills(worker: string, openDatabase: () => Promise<KillDatabase>): void {
  async function setup() {
    const database = await openDatabase()
    const store = await database.open()
    const engine = createEngine({ store, onLapse: 'rerun', sweepEveryMs: 0, reapEveryMs: 0 })
    const start = (point: string, key: string) => startWorker(worker, [database.url, point, key])
    return { ...database, store, engine, start }
  }

  it.each(Object.entries(OUTCOMES))(
    'commits both key and row, or neither, when a process is killed at "%s"',
    async (point, isPaid) => {
      const { engine, start, buried, lapse, paid, tool } = await setup()
      const killed = start(point, 'k')
      await killed.written(1)
      await killed.kill()
      await buried()

      const record = await engine.read({ scope: SCOPE, key: 'k' })
      const rows = await paid()
      expect(rows.length === 1).toBe(record?.state === 'completed')
      if (isPaid !== undefined) expect(rows).toEqual(isPaid ? ['k'] : [])

      // Once the lease has lapsed, the next attempt pays only if no payment was committed.
      await lapse()
      const outcome = await engine.run(requestOf('k'), (context) =>
        tool().transact(async ({ tx, pay }) => {
          await pay('k')
          await context.completeIn(tx, Buffer.from('receipt of k'))
          return Buffer.from('receipt of k')
        }),
      )
      expect(told(outcome)).toEqual([rows.length === 1 ? 'replayed' : 'ran', 'receipt of k'])
      expect(await paid()).toEqual(['k'])
    },
  )

  // Another process holds the key and its row in a transaction that stays open.
  it('answers duplicates and other keys at once while a transaction stays open', async () => {
    const { engine, start, buried, isOpen, paid } = await setup()
    const holder = start('completed', 'k')
    await holder.written(1)
    const other = (key: string) => engine.run(requestOf(key), () => Buffer.from('other'))
    const duplicates = await Promise.all(Array.from({ length: 10 }, () => other('k')))
    expect(new Set(duplicates.map(({ kind }) => kind))).toEqual(new Set(['in_progress']))
    const others = await Promise.all(Array.from({ length: 50 }, (_, n) => other(`other-${n}`)))
    expect(new Set(others.map(({ kind }) => kind))).toEqual(new Set(['ran']))

    // All of these were answered while it was open. Its writes are lost when it is killed.
    expect(await isOpen()).toBe(true)
    await holder.kill()
    await buried()
    expect(await paid()).toEqual([])
  })

  it('commits key and row together when a process is killed at a random time', async () => {
    const seed = Number(process.env['ONCEKEY_TEST_SEED'] ?? Math.floor(Math.random() * 2 ** 31))
    console.info(`kill rounds with ONCEKEY_TEST_SEED=${seed}`)
    const random = seededRandom(seed)
    const { store, start, buried, paid } = await setup()
    const acknowledged: string[] = []
    for (let round = 0; round < KILL_ROUNDS; round++) {
      const killed = start('nowhere', `${seed + round}`)
      await killed.written(1 + Math.floor(random() * 15))
      await new Promise((resolve) => setTimeout(resolve, random() * 5))
      await killed.kill()
      acknowledged.push(...killed.lines)
    }
    await buried()
    const rows = (await paid()) as string[]
    const completed = await store.list({ state: 'completed', limit: 100_000 })
    expect(completed.map(({ key }) => key).toSorted()).toEqual(rows.toSorted())
    expect(rows).toEqual(expect.arrayContaining(acknowledged))
  })
}
