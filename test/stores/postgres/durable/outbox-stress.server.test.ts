import type pg from 'pg'
import { expect, it } from 'vitest'
import type {
  HeldMessage,
  MessageSettlement,
  NewMessage,
} from '../../../../src/core/store/durable-store.ts'
import { newToken } from '../../../../src/core/record/identity.ts'
import { postgresStore } from '../../../../src/stores/postgres/index.ts'
import { BY, messageOf } from '../../../../src/testing/durable-cases/durable-case.ts'
import { seededRandom } from '../../../process/random.ts'
import { countingPool } from '../counting.ts'
import { usePostgres } from '../setup.ts'

const setup = usePostgres()

const ADDERS = 6
const RELAYS = 4
const TRANSACTIONS = 60
const REVIVED_MAX = 100
const PARTITIONS = ['a', 'b', 'c', undefined, undefined]
const TOPICS = ['receipts', 'invoices']
const TENANTS = ['a', 'b', 'c', undefined]

/** Records which messages of each partition are held, and how every message ended. */
class Ledger {
  /** In the order of commits: a transaction that adds to a partition locks it until it commits. */
  readonly added = new Map<string, string[]>()
  readonly dead = new Set<string>()
  /** Retried messages, which are out of order. */
  readonly revived = new Set<string>()
  readonly done: HeldMessage[] = []
  readonly #inside = new Map<string, string>()

  enter(message: HeldMessage): void {
    const lane = laneOf(message)
    if (lane === undefined) return
    expect([lane, this.#inside.get(lane)]).toEqual([lane, undefined])
    this.#inside.set(lane, message.id)
  }

  /** Called before the settlement is sent: from then on another relay may take the next one. */
  leave(message: HeldMessage, { kind }: MessageSettlement): void {
    const lane = laneOf(message)
    if (lane !== undefined) this.#inside.delete(lane)
    if (kind === 'done') this.done.push(message)
    if (kind === 'dead') this.dead.add(message.id)
  }
}

function laneOf({ topic, partition }: Pick<NewMessage, 'topic' | 'partition'>) {
  return partition === undefined ? undefined : `${topic}/${partition}`
}

type Choose = <Item>(items: readonly Item[]) => Item

/** Adds messages in transactions; some are rolled back. */
async function addAll(store: Store, pool: pg.Pool, ledger: Ledger, pick: Choose): Promise<number> {
  let count = 0
  for (let n = 0; n < TRANSACTIONS; n++) {
    const client = await pool.connect()
    const isKept = pick([true, true, true, false])
    await client.query('BEGIN')
    const message = messageOf({
      topic: pick(TOPICS),
      partition: pick(PARTITIONS),
      tenant: pick(TENANTS),
    })
    await store.durable.outbox.add(client, message)
    const lane = laneOf(message)
    if (isKept) count++
    if (isKept && lane !== undefined) {
      ledger.added.set(lane, [...(ledger.added.get(lane) ?? []), message.id])
    }
    await client.query(isKept ? 'COMMIT' : 'ROLLBACK')
    client.release()
  }
  return count
}

type Store = ReturnType<typeof postgresStore>

function settlementOf({ id, token }: HeldMessage, pick: Choose): MessageSettlement {
  return pick<MessageSettlement>([
    { id, token, kind: 'done', providerId: undefined },
    { id, token, kind: 'done', providerId: 'p' },
    { id, token, kind: 'retry', error: 'again', delayMs: 0 },
    { id, token, kind: 'return' },
    { id, token, kind: 'dead', error: 'no', blocks: false },
  ])
}

async function relayUntil(store: Store, ledger: Ledger, pick: Choose, isOver: () => boolean) {
  const { outbox } = store.durable
  while (!isOver()) {
    const request = { topics: TOPICS, limit: pick([1, 3, 20]), leaseMs: 60_000 }
    const turns = pick([{}, {}, { withoutTenants: ['a', ''] }, { limits: [1, 3] }])
    const held = await outbox.claim({ ...request, ...turns, token: newToken() })
    for (const message of held) ledger.enter(message)
    // Renewals and settlements run at once, in batches that overlap with those of other relays.
    expect(await outbox.renew(held, 60_000)).toEqual(held.map(() => true))
    const settlements = held.map((message) => settlementOf(message, pick))
    for (const [n, message] of held.entries()) ledger.leave(message, settlements[n]!)
    expect(await outbox.settle(settlements)).toEqual(held.map(() => true))
  }
}

/** Prunes, and retries dead messages as an operator, while relays run. */
async function operateUntil(store: Store, ledger: Ledger, isOver: () => boolean) {
  while (!isOver()) {
    const [id] = ledger.dead
    if (id !== undefined && ledger.revived.size < REVIVED_MAX) {
      ledger.dead.delete(id)
      ledger.revived.add(id)
      // The settlement that makes the message dead may not have committed yet.
      const revive = () => store.durable.operator.act({ kind: 'retry_message', messageId: id }, BY)
      while ((await revive()).kind !== 'done');
    }
    await store.durable.outbox.prune({ limit: 10, olderThanMs: 60_000 })
  }
}

it(
  'relays every message once and in its order, without a deadlock, under concurrent changes',
  { timeout: 120_000 },
  async () => {
    const seed = Number(process.env['ONCEKEY_TEST_SEED'] ?? Math.floor(Math.random() * 2 ** 31))
    console.info(`ONCEKEY_TEST_SEED=${seed}`)
    const random = seededRandom(seed)
    const pick: Choose = (items) => items[Math.floor(random() * items.length)]!
    const { open, url, connect, column } = await setup()
    await open()
    const { pool, errors } = countingPool(url)
    const store = postgresStore({ pool })
    const app = connect({ max: ADDERS })
    const ledger = new Ledger()
    const added = { count: Number.POSITIVE_INFINITY }
    const isOver = () => ledger.done.length + ledger.dead.size >= added.count
    const relays = Array.from({ length: RELAYS }, () => relayUntil(store, ledger, pick, isOver))
    const upkeep = operateUntil(store, ledger, isOver)
    const counts = await Promise.all(
      Array.from({ length: ADDERS }, () => addAll(store, app, ledger, pick)),
    )
    added.count = counts.reduce((sum, count) => sum + count, 0)
    await Promise.all([...relays, upkeep])

    // A claim beside a retried message may violate the unique index, and is then repeated.
    expect(errors().filter((code) => code !== '23505')).toEqual([])
    const left = `SELECT count(*)::int FROM oncekey_record_message
      WHERE state NOT IN ('done', 'dead', 'dropped')`
    expect(await column(left)).toEqual([0])
    expect(new Set(ledger.done.map(({ id }) => id)).size).toBe(ledger.done.length)
    for (const [lane, ids] of ledger.added) {
      const isInTurn = (id: string) => !ledger.dead.has(id) && !ledger.revived.has(id)
      const relayed = ledger.done.filter((one) => laneOf(one) === lane).map(({ id }) => id)
      expect([lane, relayed.filter(isInTurn)]).toEqual([lane, ids.filter(isInTurn)])
    }
  },
)
