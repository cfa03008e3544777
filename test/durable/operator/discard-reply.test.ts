import { describe, expect, it } from 'vitest'
import { idempotencyOf, type IdempotencyOptions } from '../../../src/adapters/express/index.ts'
import type { EngineEvent } from '../../../src/core/events.ts'
import { createOperator, defineOperation } from '../../../src/durable/index.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { header, json } from '../../adapters/run-express.ts'
import { openShop } from '../../checklist/shop.ts'
import { askable, durableFixture, payment } from '../operations/durable-fixture.ts'
import { BY } from './operator-fixture.ts'

const KEY = { scope: { tenant: 'acme', operation: 'POST /payments' }, key: 'k' }

/** A shop on the memory store, whose handler replies with its ids and a status that a test sets. */
async function memoryShop(status: number, guard: Partial<IdempotencyOptions> = {}) {
  const clock = new FakeClock()
  const replies = { status }
  const shop = await openShop({
    store: memoryStore({ clock }),
    engine: { clock },
    guard,
    handler: (_till, req, res) => {
      const id = idempotencyOf(req).deterministicId('payment')
      res.status(replies.status).json({ id, status: replies.status })
    },
  })
  const events = () => shop.events.filter(({ kind }: EngineEvent) => kind === 'operator_acted')
  return {
    ...shop,
    clock,
    replies,
    acted: events,
    operator: createOperator({ engine: shop.engine }),
  }
}

describe('discardReply of a plain handler', () => {
  it('lets the work run again with the same ids, on a store without an audit', async () => {
    const { pay, replies, operator, acted } = await memoryShop(422)
    const first = await pay({ key: 'k' })
    const outcome = await operator.discardReply(KEY, BY)
    expect(outcome).toMatchObject({ kind: 'done', record: { state: 'failed_retryable' } })
    expect(acted()).toMatchObject([{ act: 'discard_reply', who: BY.who }])
    replies.status = 201
    const second = await pay({ key: 'k' })
    expect(second.status).toBe(201)
    expect(json(second)['id']).toBe(json(first)['id'])
    expect(header(await pay({ key: 'k' }), 'idempotent-replayed')).toBe('true')
  })

  it('is refused for a reply below 400, which counts as an effect', async () => {
    const { pay, operator, acted } = await memoryShop(201)
    const first = await pay({ key: 'k' })
    const refused = await operator.discardReply(KEY, BY)
    expect(refused).toMatchObject({ kind: 'refused', reason: 'effect_done' })
    expect(acted()).toEqual([])
    expect(json(await pay({ key: 'k' }))).toEqual(json(first))
    const accepted = await operator.discardReply(KEY, BY, { despiteEffects: true })
    expect(accepted.kind).toBe('done')
    expect(header(await pay({ key: 'k' }), 'idempotent-replayed')).toBe(undefined)
  })

  it('gives the next run new ids when the operator asks for them', async () => {
    const { pay, operator } = await memoryShop(201)
    const first = await pay({ key: 'k' })
    const options = { despiteEffects: true, freshIds: true }
    expect((await operator.discardReply(KEY, BY, options)).kind).toBe('done')
    const second = await pay({ key: 'k' })
    expect(json(second)['id']).not.toBe(json(first)['id'])
  })

  it('is repeated as already, and refuses another attempt and other states', async () => {
    const { pay, operator, acted } = await memoryShop(422)
    await pay({ key: 'k' })
    const other = await operator.discardReply({ ...KEY, attempt: 2 }, BY)
    expect(other).toMatchObject({ kind: 'refused', reason: 'other_attempt' })
    await operator.discardReply(KEY, BY)
    expect((await operator.discardReply(KEY, BY)).kind).toBe('already')
    expect(acted()).toHaveLength(1)
    expect((await operator.discardReply({ ...KEY, key: 'none' }, BY)).kind).toBe('not_found')
  })

  it('is refused for a reply that is recorded after the record was read', async () => {
    const { pay, replies, operator, engine } = await memoryShop(503)
    await pay({ key: 'k' })
    replies.status = 201
    const { discard } = engine.store
    const discards: unknown[] = []
    engine.store.discard = (...given) => {
      discards.push(given)
      return discard!.apply(engine.store, given)
    }
    const refused = await operator.discardReply(KEY, BY)
    expect(refused).toMatchObject({ kind: 'refused', reason: 'failed_retryable' })
    expect(discards).toEqual([])
  })

  it('is refused for an expired reply, and for a 5xx that was recorded', async () => {
    const { pay, operator, clock } = await memoryShop(422)
    await pay({ key: 'k' })
    await clock.advanceAsync(86_400_000)
    const late = await operator.discardReply(KEY, BY)
    expect(late).toMatchObject({ kind: 'refused', reason: 'expired' })
    const stored = await memoryShop(500, { onError: 'store' })
    await stored.pay({ key: 'k' })
    const doubtful = await stored.operator.discardReply(KEY, BY)
    expect(doubtful).toMatchObject({ kind: 'refused', reason: 'effect_done' })
  })

  it('rejects unknown and wrong options, and an act without a name', async () => {
    const { operator } = await memoryShop(422)
    const wrong = [{ despiteEffect: true }, { freshIds: 'yes' }] as never[]
    for (const options of wrong) {
      await expect(operator.discardReply(KEY, BY, options)).rejects.toThrow(/discardReply/)
    }
    await expect(operator.discardReply(KEY, { who: '', why: 'x' })).rejects.toThrow(/who/)
  })

  it('leaves the other acts to stores with an audit', async () => {
    const { operator } = await memoryShop(422)
    await expect(operator.release(KEY, BY)).rejects.toThrow(/keeps no operations/)
    await expect(operator.audit()).rejects.toThrow(/keeps no operations/)
    expect(await operator.inspect(KEY)).toEqual({ kind: 'not_found' })
    expect(await operator.list({ state: 'completed' })).toEqual([])
  })
})

describe('discardReply of an operation', () => {
  it('is refused after an effect, and runs it again from the beginning if accepted', async () => {
    const { provider, run, engine, record } = durableFixture()
    const pay = payment(askable(provider))
    const operator = createOperator({ engine, operations: [pay] })
    const first = await run(pay, { amount: 500 })
    const { recordId } = await record(pay)
    const refused = await operator.discardReply({ recordId }, BY)
    expect(refused).toEqual({ kind: 'refused', subject: recordId, reason: 'effect_done' })
    const accepted = await operator.discardReply({ recordId }, BY, { despiteEffects: true })
    expect(accepted.kind).toBe('done')
    const again = await run(pay, { amount: 500 })
    // The provider recognises the downstream key, and makes no second charge.
    expect(again).toEqual(first)
    expect(provider.calls).toHaveLength(2)
    expect(new Set(provider.calls).size).toBe(1)
    expect(provider.ledger).toHaveLength(1)
    const inspection = await operator.inspect({ recordId })
    expect(inspection).toMatchObject({
      kind: 'found',
      operation: { phases: [{ name: 'record' }, { name: 'charge' }] },
      discarded: [
        {
          attempt: 1,
          operation: { phases: [{ name: 'record' }, { name: 'charge', providerId: 'ch_1' }] },
        },
      ],
    })
  })

  it('is refused for an operation without effects, which may have added messages', async () => {
    const { run, engine, record } = durableFixture()
    const note = defineOperation({
      name: 'notes.create',
      run: (op) => op.finish('note', () => ({ status: 201, body: {} })),
    })
    const operator = createOperator({ engine, operations: [note] })
    await run(note, undefined)
    const { recordId } = await record(note)
    const refused = await operator.discardReply({ recordId }, BY)
    expect(refused).toEqual({ kind: 'refused', subject: recordId, reason: 'effect_done' })
  })

  it('charges again with fresh ids', async () => {
    const { provider, run, engine, record } = durableFixture()
    const pay = payment(askable(provider))
    const operator = createOperator({ engine, operations: [pay] })
    await run(pay, { amount: 500 })
    const { recordId } = await record(pay)
    const options = { despiteEffects: true, freshIds: true }
    expect((await operator.discardReply({ recordId }, BY, options)).kind).toBe('done')
    await run(pay, { amount: 500 })
    expect(new Set(provider.calls).size).toBe(2)
    expect(provider.ledger).toHaveLength(2)
  })
})
