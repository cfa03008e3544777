/**
 * The payment of the killed processes: record it, charge it, book it and send a receipt. Its files
 * import as little as possible: loading is most of the work of a process that is killed early.
 */
import type { Engine } from '../../../src/core/engine/engine-contract.ts'
import type { Effect } from '../../../src/durable/operations/operation-contract.ts'
import { defineOperation, type Operation } from '../../../src/durable/operations/operation.ts'
import { createOutbox } from '../../../src/durable/outbox/outbox.ts'
import { createRelay } from '../../../src/durable/outbox/relay.ts'
import { operationPolicy } from '../../../src/durable/operations/worker-options.ts'
import type { ReplyInit } from '../../../src/http/reply/http-reply.ts'
import type { Acquirer, Charge, PostOffice } from './ledgers.ts'

export interface Payment {
  readonly amount: number
}

/**
 * How the outcome of a charge is determined. `asked`: by a query. `repeated`: by sending it again,
 * because the provider recognises its key. `blind`: only by an operator.
 */
export const WAYS = ['asked', 'repeated', 'blind'] as const

export type Way = (typeof WAYS)[number]

/** Writes the business rows. Synchronous if the driver is synchronous. */
export type Write = (tx: never, statements: readonly string[]) => Promise<void> | undefined

/** The amount of the payment. */
export const AMOUNT = 5

export const BOOKS = [
  'CREATE TABLE payment (id VARCHAR(64), amount INT, status VARCHAR(16))',
  'CREATE TABLE entry (payment VARCHAR(64), account VARCHAR(16), amount INT)',
]

export const RECEIPTS = 'receipts'

/** After this time a charge that the provider does not know was not made and will not be. */
export const PROVEN_AFTER_MS = 2 * 3_600_000
/** How long a provider remembers its keys. */
const REPEATABLE_MS = 24 * 3_600_000

export interface PaymentParts {
  readonly engine: Engine
  readonly acquirer: Acquirer
  readonly write: Write
  readonly way: Way
}

export function paymentOperation({
  engine,
  acquirer,
  write,
  way,
}: PaymentParts): Operation<Payment> {
  const outbox = createOutbox({ engine })
  return defineOperation({
    name: 'payments.create',
    effects: { charge: chargeEffect(acquirer, way) },
    async run(op, { amount }: Payment) {
      const id = op.deterministicId('payment')
      const made = `INSERT INTO payment VALUES ('${id}', ${amount}, 'recorded')`
      await op.transaction('record', (tx: never) => after(write(tx, [made]), () => id))
      const charge = await op.external('charge', { amount })
      return op.finish('book', (tx: never) => {
        const reply: ReplyInit = { status: 201, body: { id, chargeId: charge.id } }
        const written = write(tx, [
          `INSERT INTO entry VALUES ('${id}', 'customer', ${-amount})`,
          `INSERT INTO entry VALUES ('${id}', 'merchant', ${amount})`,
          `UPDATE payment SET status = 'booked' WHERE id = '${id}'`,
        ])
        const receipt = { payment: id, charge: charge.id }
        return after(written, () => {
          const added = outbox.add(tx, RECEIPTS, receipt, { key: id })
          return written === undefined ? reply : added.then(() => reply)
        })
      })
    },
  })
}

function chargeEffect(acquirer: Acquirer, way: Way): Effect<Payment, Charge> {
  const effect: Effect<Payment, Charge> = {
    send: ({ request, downstreamKey }) => acquirer.charge(downstreamKey, request.amount),
    providerId: ({ id }) => id,
  }
  switch (way) {
    case 'asked':
      return {
        ...effect,
        reconcile: async ({ downstreamKey }) => {
          const charge = await acquirer.find(downstreamKey)
          return charge === undefined ? { kind: 'not_found' } : { kind: 'done', result: charge }
        },
        notFoundIsFinalAfterMs: PROVEN_AFTER_MS,
      }
    case 'repeated':
      return { ...effect, resendWithinMs: REPEATABLE_MS }
    case 'blind':
      return effect
  }
}

export function receiptRelay(engine: Engine, postOffice: PostOffice) {
  return createRelay({
    engine,
    topics: {
      [RECEIPTS]: ({ downstreamKey, payload }) => postOffice.deliver(downstreamKey, payload),
    },
  })
}

export function requestOf(engine: Engine, { name }: { readonly name: string }) {
  const scope = { tenant: 'acme', operation: name }
  return { scope, key: 'k', fingerprint: 'f', policy: operationPolicy(engine) }
}

export function textOf(result: Uint8Array): string {
  return Buffer.from(result).toString('latin1')
}

function after<Result>(
  written: Promise<void> | undefined,
  next: () => Result | Promise<Result>,
): Result | Promise<Result> {
  return written === undefined ? next() : written.then(next)
}
