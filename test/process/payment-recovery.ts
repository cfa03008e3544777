/**
 * What comes after a kill: another process finds the store as it was left and brings the payment
 * to its end, and the client asks again. Then it is checked that there was one payment.
 */
import { createEngine, type Engine } from '../../src/core/engine.ts'
import type { Clock } from '../../src/core/clock.ts'
import type { RecordView, Store } from '../../src/core/store.ts'
import {
  createMaintenance,
  createOperator,
  createReconciler,
  createWorker,
  type Maintenance,
  type Operation,
  type Operator,
} from '../../src/durable/index.ts'
import { Acquirer, PostOffice } from './payment-ledgers.ts'
import {
  AMOUNT,
  paymentOperation,
  receiptRelay,
  requestOf,
  textOf,
  type Payment,
  type Way,
  type Write,
} from './payment-operation.ts'

/** A store as a killed process has left it, and the ledgers of the world outside. */
export interface Site {
  readonly store: Store
  readonly clock: Clock
  readonly write: Write
  /** Where the ledgers are. */
  readonly folder: string
  /** Time goes by. */
  readonly pass: (ms: number) => Promise<void>
  readonly rows: (sql: string) => Promise<Record<string, unknown>[]>
}

/** Who comes first after the kill: nobody but maintenance, or a client that asks all the time. */
export const ORDERS = ['alone', 'client'] as const

export type Order = (typeof ORDERS)[number]

export interface Aftermath {
  readonly charges: readonly unknown[]
  readonly deliveries: readonly { readonly key: string }[]
  readonly payments: readonly Record<string, unknown>[]
  readonly entries: readonly Record<string, unknown>[]
  readonly record: RecordView | undefined
  /** What clients were answered, as text. */
  readonly replies: readonly string[]
  /** What has not come to its end although everybody has done his part. */
  readonly stuck: string | undefined
}

/** More than a lease or a pause of the relay; three of them are more than a proof takes. */
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
    return `still at work after ${ROUNDS_MAX} rounds`
  }
  const first = await goOn()
  // The client comes back at last, and once more: the receipt of what it made run is sent too.
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

/** What the client is answered, where it is more than to come back later. */
async function retry({ engine, pay }: Survivors): Promise<string | undefined> {
  try {
    const outcome = await engine.run(requestOf(engine, pay), pay.work({ amount: AMOUNT }))
    const isAnswer = outcome.kind === 'ran' || outcome.kind === 'replayed'
    return isAnswer ? textOf(outcome.result) : undefined
  } catch (error) {
    // It ran into what nobody can know yet: to be looked into, like everything that is unknown.
    if ((error as { code?: unknown }).code === 'OUTCOME_UNKNOWN') return undefined
    throw error
  }
}

/** Looks at the provider's books for whatever was given up, and says what is there. */
async function actAsOperator({ operator, engine, acquirer }: Survivors): Promise<void> {
  const { records } = await operator.deadLetters()
  for (const { recordId } of records) {
    const found = await operator.inspect({ recordId })
    const phases = found.kind === 'found' ? found.operation?.phases : undefined
    const open = phases?.find(({ state }) => state === 'intended')
    if (open?.downstreamKey === undefined) continue
    const { downstreamKey } = open
    const charge = await acquirer.find(downstreamKey)
    const by = { who: 'ada', why: `looked into the books for ${engine.store.name}` }
    const verdict =
      charge === undefined
        ? ({ kind: 'not_executed' } as const)
        : ({ kind: 'done', result: charge } as const)
    await operator.conclude({ downstreamKey }, verdict, by)
  }
}

/** Nothing is under way that anybody but the client could bring further. */
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
 * What is wrong with it; nothing where there was one payment. `told`: what a client had been
 * answered before the kill. `isDelivered`: the kill came after the receipt was delivered, and
 * before anybody had written that down, so that it may come a second time.
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
  check(booked.join() === expected.join(), `the books say: ${booked.join()}`)
  const receipts = new Set(deliveries.map(({ key }) => key)).size
  check(receipts === 1, `${receipts} receipts`)
  const deliveriesMax = isDelivered ? 2 : 1
  check(deliveries.length <= deliveriesMax, `${deliveries.length} deliveries`)
  check(record?.state === 'completed', `the record is ${record?.state ?? 'absent'}`)
  check(replies.length >= 2, `the client was answered ${replies.length} times`)
  const all = new Set([...replies, ...(told === undefined ? [] : [told])])
  if (record?.result !== undefined) all.add(textOf(record.result))
  check(all.size === 1, `${all.size} different replies`)
  return problems
}
