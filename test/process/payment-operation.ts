/**
 * The payment that processes are killed in: record it, charge it, book it and send a receipt. Its
 * files import no more than they need: to load them is most of what a killed process does.
 */
import type { Engine } from '../../src/core/engine.ts'
import type { Effect } from '../../src/durable/operation-contract.ts'
import { operation, type Operation } from '../../src/durable/operation.ts'
import { createOutbox } from '../../src/durable/outbox.ts'
import { createRelay } from '../../src/durable/relay.ts'
import { operationPolicy } from '../../src/durable/worker-options.ts'
import type { GivenReply } from '../../src/http/http-reply.ts'
import type { Acquirer, Charge, PostOffice } from './payment-ledgers.ts'

export interface Payment {
  readonly amount: number
}

/**
 * How it can be found out whether a charge was made. `asked`: by asking. `repeated`: by sending it
 * again, because the provider recognises its key. `blind`: only by an operator.
 */
export const WAYS = ['asked', 'repeated', 'blind'] as const

export type Way = (typeof WAYS)[number]

/** Writes the rows of the business. Where the driver is synchronous, so is this. */
export type Write = (tx: never, statements: readonly string[]) => Promise<void> | undefined

/** What the client pays. */
export const AMOUNT = 5

export const BOOKS = [
  'CREATE TABLE payment (id VARCHAR(64), amount INT, status VARCHAR(16))',
  'CREATE TABLE entry (payment VARCHAR(64), account VARCHAR(16), amount INT)',
]

export const RECEIPTS = 'receipts'

/** From then on a charge that the provider does not know was not made and will not be. */
export const PROVEN_AFTER_MS = 2 * 3_600_000
/** A provider remembers its keys for this long. */
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
  return operation({
    name: 'payments.create',
    effects: { charge: chargeEffect(acquirer, way) },
    async run(op, { amount }: Payment) {
      const id = op.deterministicId('payment')
      const made = `INSERT INTO payment VALUES ('${id}', ${amount}, 'recorded')`
      await op.transaction('record', (tx: never) => after(write(tx, [made]), () => id))
      const charge = await op.external('charge', { amount })
      return op.finish('book', (tx: never) => {
        const reply: GivenReply = { status: 201, body: { id, chargeId: charge.id } }
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
        provenAfterMs: PROVEN_AFTER_MS,
      }
    case 'repeated':
      return { ...effect, repeatable: { withinMs: REPEATABLE_MS } }
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
