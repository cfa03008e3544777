/**
 * The recovery after a kill: another process opens the store and finishes the payment, and the
 * client asks again. Then the check confirms that there was one payment.
 */
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { Engine } from '../../../src/core/engine/engine-contract.ts'
import type { Clock } from '../../../src/core/time/clock.ts'
import type { RecordView, Store } from '../../../src/core/store/store.ts'
import {
  createMaintenance,
  createOperator,
  createReconciler,
  createWorker,
  type Maintenance,
  type Operation,
  type Operator,
} from '../../../src/durable/index.ts'
import { Acquirer, PostOffice } from './ledgers.ts'
import {
  AMOUNT,
  paymentOperation,
  receiptRelay,
  requestOf,
  textOf,
  type Payment,
  type Way,
  type Write,
} from './operation.ts'

/** The store that a killed process left, and the ledgers of the outside services. */
export interface Site {
  readonly store: Store
  readonly clock: Clock
  readonly write: Write
  /** The folder of the ledgers. */
  readonly folder: string
  /** Moves time forward. */
  readonly pass: (ms: number) => Promise<void>
  readonly rows: (sql: string) => Promise<Record<string, unknown>[]>
}

/** The first actor after the kill: only maintenance, or a client that asks all the time. */
export const ORDERS = ['alone', 'client'] as const

export type Order = (typeof ORDERS)[number]

export interface Aftermath {
  readonly charges: readonly unknown[]
  readonly deliveries: readonly { readonly key: string }[]
  readonly payments: readonly Record<string, unknown>[]
  readonly entries: readonly Record<string, unknown>[]
  readonly record: RecordView | undefined
  /** The replies that clients got, as text. */
  readonly replies: readonly string[]
  /** The work that has not ended after all maintenance, if any. */
  readonly stuck: string | undefined
}

/** More than a lease or a pause of the relay; three rounds are longer than a proof takes. */
const ROUND_MS = 40 * 60_000
const ROUNDS_MAX = 12

interface Survivors {
  readonly engine: Engine
  readonly pay: Operation<Payment>
  readonly maintenance: Maintenance
  readonly operator: Operator
  readonly acquirer: Acquirer
  readonly postOffice: PostOffice
}

export async function recover(
  site: Site,
  { way, order }: { readonly way: Way; readonly order: Order },
): Promise<Aftermath> {
  const survivors = survive(site, way)
  const { engine, acquirer, postOffice } = survivors
  const replies: string[] = []
  const ask = async () => {
    const reply = await retry(survivors)
    if (reply !== undefined) replies.push(reply)
  }
  const goOn = async () => {
    for (let round = 0; round < ROUNDS_MAX; round++) {
      if (order === 'client') await ask()
      await survivors.maintenance.runOnce()
      await actAsOperator(survivors)
      await site.pass(ROUND_MS)
      if (await isQuiet(survivors)) return undefined
    }
    return `work was still in progress after ${ROUNDS_MAX} rounds`
  }
  const first = await goOn()
  // The client asks twice at the end, so that the receipt of a run it causes is sent too.
  await ask()
  const stuck = first ?? (await goOn())
  await ask()
  return {
    charges: acquirer.charges,
    deliveries: postOffice.deliveries,
    payments: await site.rows('SELECT status FROM payment'),
    entries: await site.rows('SELECT account, amount FROM entry ORDER BY account'),
    record: await engine.read(targetOf(survivors)),
    replies,
    stuck,
  }
}

function survive({ store, clock, write, folder }: Site, way: Way): Survivors {
  const engine = createEngine({ store, clock, sweepEveryMs: 0, reapEveryMs: 0 })
  const acquirer = new Acquirer(folder, { dedups: way === 'repeated' })
  const postOffice = new PostOffice(folder)
  const pay = paymentOperation({ engine, acquirer, write, way })
  const operations = [pay]
  const maintenance = createMaintenance({
    engine,
    worker: createWorker({ engine, operations }),
    reconciler: createReconciler({ engine, operations }),
    relay: receiptRelay(engine, postOffice),
  })
  const operator = createOperator({ engine, operations })
  return { engine, pay, maintenance, operator, acquirer, postOffice }
}

function targetOf({ engine, pay }: Survivors) {
  const { scope, key } = requestOf(engine, pay)
  return { scope, key }
}

/** The reply that the client gets, if it is more than "retry later". */
async function retry({ engine, pay }: Survivors): Promise<string | undefined> {
  try {
    const outcome = await engine.run(requestOf(engine, pay), pay.work({ amount: AMOUNT }))
    const isAnswer = outcome.kind === 'ran' || outcome.kind === 'replayed'
    return isAnswer ? textOf(outcome.result) : undefined
  } catch (error) {
    // The outcome of this run is unknown: reconciled like every unknown record.
    if ((error as { code?: unknown }).code === 'OUTCOME_UNKNOWN') return undefined
    throw error
  }
}

/** Checks the provider's ledger for abandoned charges, and gives verdicts. */
async function actAsOperator({ operator, engine, acquirer }: Survivors): Promise<void> {
  const { records } = await operator.deadLetters()
  for (const { recordId } of records) {
    const found = await operator.inspect({ recordId })
    const phases = found.kind === 'found' ? found.operation?.phases : undefined
    const open = phases?.find(({ state }) => state === 'intended')
    if (open?.downstreamKey === undefined) continue
    const { downstreamKey } = open
    const charge = await acquirer.find(downstreamKey)
    const by = { who: 'ada', why: `checked the ledger for ${engine.store.name}` }
    const verdict =
      charge === undefined
        ? ({ kind: 'not_executed' } as const)
        : ({ kind: 'done', result: charge } as const)
    await operator.resolve({ downstreamKey }, verdict, by)
  }
}

/** Whether no work is left that can continue without the client. */
async function isQuiet(survivors: Survivors): Promise<boolean> {
  const { engine } = survivors
  const record = await engine.read(targetOf(survivors))
  const isOpen =
    record !== undefined &&
    record.state !== 'completed' &&
    !(record.state === 'failed_retryable' && record.recoveryPoint === undefined)
  if (isOpen) return false
  const { outbox } = engine.store.durable!
  for (const state of ['ready', 'held', 'dead'] as const) {
    if ((await outbox.list({ state, limit: 1 })).length > 0) return false
  }
  return true
}

/**
 * Describes what is wrong; empty if there was exactly one payment. `told` is the reply that a
 * client got before the kill. With `isDelivered` the kill came after the receipt was delivered and
 * before that was recorded, so the receipt may arrive a second time.
 */
export function problemsOf(
  { charges, deliveries, payments, entries, record, replies, stuck }: Aftermath,
  { told, isDelivered }: { readonly told: string | undefined; readonly isDelivered: boolean },
): string[] {
  const problems: string[] = []
  const check = (isRight: boolean, problem: string) => {
    if (!isRight) problems.push(problem)
  }
  check(stuck === undefined, stuck ?? '')
  check(charges.length === 1, `${charges.length} charges`)
  check(payments.length === 1, `${payments.length} payments`)
  check(payments[0]?.['status'] === 'booked', 'not booked')
  const booked = entries.map(({ account, amount }) => `${String(account)} ${Number(amount)}`)
  const expected = [`customer ${-AMOUNT}`, `merchant ${AMOUNT}`]
  check(booked.join() === expected.join(), `the booked entries are ${booked.join()}`)
  const receipts = new Set(deliveries.map(({ key }) => key)).size
  check(receipts === 1, `${receipts} receipts`)
  const deliveriesMax = isDelivered ? 2 : 1
  check(deliveries.length <= deliveriesMax, `${deliveries.length} deliveries`)
  check(record?.state === 'completed', `the record is ${record?.state ?? 'absent'}`)
  check(replies.length >= 2, `the client got ${replies.length} replies`)
  const all = new Set([...replies, ...(told === undefined ? [] : [told])])
  if (record?.result !== undefined) all.add(textOf(record.result))
  check(all.size === 1, `${all.size} different replies`)
  return problems
}
