// Takes about 39 s.
import { existsSync, readFileSync, mkdirSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { downstreamKeyOf } from '../../../src/core/record/identity.ts'
import { createOutbox } from '../../../src/durable/outbox/outbox.ts'
import { startWorker, type WorkerProcess } from '../../process/worker-process.ts'
import { startMariadb, type MariadbServer } from '../../servers/mariadb.ts'
import { startPostgres, type PostgresServer } from '../../servers/postgres.ts'
import { scratchFolder } from '../../stores/scratch-folder.ts'
import { DATABASES, openDatabase, type DatabaseKind } from './relay-databases.ts'

let postgres: PostgresServer
let mariadb: MariadbServer
beforeAll(async () => {
  postgres = await startPostgres()
  mariadb = await startMariadb()
}, 120_000)
afterAll(async () => {
  await postgres.close()
  await mariadb.close()
})

/** Longer than any pause of a busy machine, so that no lease lapses by accident. */
const LONG_LEASE_MS = 60_000
const SHORT_LEASE_MS = 1_500

async function setup(kind: DatabaseKind) {
  const folder = scratchFolder()
  onTestFinished(folder.remove)
  const location = await locate(kind, folder.file('records.db'))
  const database = await openDatabase(kind, location)
  onTestFinished(database.close)
  const { store, transact } = database
  await transact(async ({ query }) => {
    await query('CREATE TABLE log (lane VARCHAR(20), place INTEGER, id VARCHAR(40))')
  })
  const engine = createEngine({ store, sweepEveryMs: 0, reapEveryMs: 0 })
  const outbox = createOutbox({ engine })
  const add = async (payload: unknown): Promise<string> => {
    let id = ''
    await transact(async ({ tx }) => {
      id = await outbox.add(tx, 't', payload)
    })
    return id
  }
  const runs = folder.file('runs')
  mkdirSync(runs)
  const start = (mode: string, leaseMs: number): WorkerProcess =>
    startWorker('../durable/outbox/relay-worker.ts', [kind, location, runs, mode, `${leaseMs}`])
  /** The messages that all processes have started, in order. */
  const begun = (): string[] => {
    const path = `${runs}/order.log`
    return existsSync(path) ? readFileSync(path, 'utf8').trimEnd().split('\n') : []
  }
  return { store: store.durable!.outbox, transact, outbox, add, start, begun }
}

function locate(kind: DatabaseKind, path: string): Promise<string> {
  if (kind === 'sqlite') return Promise.resolve(path)
  return kind === 'postgres' ? postgres.database() : mariadb.database()
}

/** Resolves at a line of the worker with this start. Rejects if the worker ends before. */
async function line(worker: WorkerProcess, start: string): Promise<string> {
  for (let count = 1; ; count++) {
    await worker.written(count)
    const found = worker.lines[count - 1]!
    if (found.startsWith(start)) return found
  }
}

async function stop(workers: readonly WorkerProcess[]): Promise<void> {
  for (const worker of workers) worker.tell('stop')
  expect(await Promise.all(workers.map(({ ended }) => ended))).toEqual(workers.map(() => 0))
}

describe.each(DATABASES)('on %s', (kind) => {
  it('never runs a message twice at the same time, or again after it is done', async () => {
    const { add, start, store, begun } = await setup(kind)
    const before = await Promise.all(Array.from({ length: 150 }, (_, n) => add(n)))
    const workers = Array.from({ length: 3 }, () => start('work', LONG_LEASE_MS))
    await Promise.all(workers.map((worker) => worker.written(1)))
    const after = await Promise.all(Array.from({ length: 150 }, (_, n) => add(n)))
    const ids = [...before, ...after].toSorted()
    await until(async () => (await store.list({ state: 'done', limit: 400 })).length === ids.length)
    await stop(workers)

    const lines = workers.flatMap((worker) => worker.lines)
    expect(lines.filter((text) => !/^(ready|message_relayed )/.test(text))).toEqual([])
    expect(
      begun()
        .map((text) => text.split(' ')[0]!)
        .toSorted(),
    ).toEqual(ids)
  })

  it('keeps the order of each partition with concurrent commits and relays', async () => {
    const { transact, outbox, start, store, begun } = await setup(kind)
    const workers = Array.from({ length: 2 }, () => start('work', LONG_LEASE_MS))
    await Promise.all(workers.map((worker) => worker.written(1)))
    const lanes = ['a', 'b', 'c']
    const write = (n: number) =>
      transact(async ({ tx, query }) => {
        const lane = lanes[n % lanes.length]!
        const id = await outbox.add(tx, 't', lane, { partition: lane })
        // A transaction waits for the earlier ones of its lane, so this counts all commits.
        const [row] = await query(`SELECT count(*) AS n FROM log WHERE lane = '${lane}'`)
        if (kind !== 'sqlite')
          await new Promise((resolve) => setTimeout(resolve, Math.random() * 5))
        await query(`INSERT INTO log VALUES ('${lane}', ${String(row!['n'])}, '${id}')`)
      })
    await Promise.all(Array.from({ length: 90 }, (_, n) => write(n)))
    await until(async () => (await store.list({ state: 'done', limit: 400 })).length === 90)
    await stop(workers)

    const log: Record<string, unknown>[] = []
    await transact(async ({ query }) => {
      log.push(...(await query('SELECT lane, place, id FROM log ORDER BY lane, place')))
    })
    const places = log.map(({ lane, place }) => `${String(lane)}${String(place)}`)
    expect(new Set(places).size).toBe(90)
    for (const lane of lanes) {
      const committed = log.filter((row) => row['lane'] === lane).map((row) => row['id'])
      const relayed = begun().filter((text) => text.endsWith(`"${lane}"`))
      expect(relayed.map((text) => text.split(' ')[0])).toEqual(committed)
    }
  })

  it('delivers the message of a killed relay again, with its noted provider id', async () => {
    const { add, start, store } = await setup(kind)
    const id = await add('pay')
    const killed = start('hang', SHORT_LEASE_MS)
    await line(killed, `noted ${id}`)
    await killed.kill()
    const next = start('hang', SHORT_LEASE_MS)
    const key = downstreamKeyOf(id, 'message')
    expect(await line(next, 'handling')).toBe(`handling ${id} 2 ${key} provider-of-${id}`)
    expect(killed.lines).toContain(`handling ${id} 1 ${key} none`)
    await line(next, `message_relayed ${id}`)
    await stop([next])
    expect(await store.read(id)).toMatchObject({
      state: 'done',
      attempt: 2,
      providerId: `provider-of-${id}`,
    })
  })

  it('fences a relay that was suspended while another claimed its message', async () => {
    const { add, start, store } = await setup(kind)
    const id = await add('pay')
    const stalled = start('stall', SHORT_LEASE_MS)
    const pid = Number((await line(stalled, `handling ${id} 1`)).split(' ').at(-1))
    const other = start('work', LONG_LEASE_MS)
    await line(other, `message_relayed ${id}`)
    process.kill(pid, 'SIGCONT')
    // The clock of the relay shows the end of the lease before any store call.
    await line(stalled, `aborted ${id}`)
    await line(stalled, `message_lost ${id}`)
    await stop([stalled, other])
    expect(stalled.lines.filter((text) => text.startsWith('message_'))).toEqual([
      `message_lost ${id}`,
    ])
    expect(await store.read(id)).toMatchObject({ state: 'done', attempt: 2 })
  })
})

/** Polls for a state of other processes, which emit no event here. */
async function until(test: () => Promise<boolean>): Promise<void> {
  while (!(await test())) await new Promise((resolve) => setTimeout(resolve, 20))
}
