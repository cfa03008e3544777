/** Work that commits together with its key, in the database of the store. */
import assert from 'node:assert/strict'
import type { AdapterCase, AdapterFixture, CaseHandler, CaseRequest } from './adapter-case.ts'
import { assertInProgress, assertRan, assertReplay, recordOf, stage } from './case-stage.ts'

/** The part of a `sqliteStore` transaction that the cases use. */
interface Tx {
  exec(sql: string): void
  prepare(sql: string): {
    run(...values: readonly string[]): unknown
    all(): readonly unknown[]
  }
}

/** The handler's reply after its transaction has replied. The guard does not send it. */
const TOO_LATE = { status: 500, body: 'too late' }

export const transactionCases: readonly AdapterCase[] = [
  {
    name: 'commits the rows of a transaction with the reply that it returns',
    async run(fixture) {
      const { pay, runs, rows } = await ledger(fixture, async (request) => {
        await inTransaction(request, (tx) => {
          insert(tx, 'pay-1')
          const headers = { 'x-payment': 'pay-1', location: '/payments/1' }
          return { status: 201, headers, body: { id: 'pay-1' } }
        })
        return TOO_LATE
      })
      const first = await pay()
      assertRan(first, 201)
      assert.equal(first.text, '{"id":"pay-1"}')
      assert.equal(first.headers['x-payment'], 'pay-1')
      assert.equal((await recordOf(fixture.store)).state, 'completed')
      const replay = await pay()
      assertReplay(replay, first)
      assert.equal(replay.headers['location'], '/payments/1')
      assert.equal(runs(), 1)
      assert.deepEqual(await rows(), ['pay-1'])
    },
  },
  {
    name: 'rolls back a transaction that throws, and runs it again on a retry',
    async run(fixture) {
      let calls = 0
      const { pay, rows } = await ledger(fixture, async (request) => {
        const id = `pay-${++calls}`
        await inTransaction(request, (tx) => {
          insert(tx, id)
          if (id === 'pay-1') throw new Error('not enough money')
          return { status: 201, body: id }
        })
        return TOO_LATE
      })
      assert.ok((await pay()).status >= 500)
      const { state, proof } = await recordOf(fixture.store)
      assert.deepEqual([state, proof], ['failed_retryable', 'proven'])
      const second = await pay()
      assertRan(second, 201)
      assertReplay(await pay(), second)
      assert.deepEqual(await rows(), ['pay-2'])
    },
  },
  {
    name: 'rolls back a transaction whose reply is not recorded, and sends that reply',
    async run(fixture) {
      let calls = 0
      const later = { status: 503, body: 'come back later' }
      const { pay, rows } = await ledger(fixture, async (request) => {
        const id = `pay-${++calls}`
        await inTransaction(request, (tx) => {
          insert(tx, id)
          return id === 'pay-1' ? later : { status: 201, body: id }
        })
        return later
      })
      const first = await pay()
      assertRan(first, 503)
      assert.equal(first.text, 'come back later')
      assertRan(await pay(), 201)
      assert.deepEqual(await rows(), ['pay-2'])
    },
  },
  {
    name: 'records a refusal that a transaction returns together with its rows',
    async run(fixture) {
      const { pay, rows, runs } = await ledger(fixture, async (request) => {
        await inTransaction(request, (tx) => {
          insert(tx, 'refused')
          return { status: 422, body: { error: 'not enough money' } }
        })
        return TOO_LATE
      })
      const first = await pay()
      assertRan(first, 422)
      assertReplay(await pay(), first)
      assert.deepEqual(await rows(), ['refused'])
      assert.equal(runs(), 1)
    },
  },
  {
    name: 'lets the handler answer the failure of its transaction',
    async run(fixture) {
      const { pay, rows, runs } = await ledger(fixture, async (request) => {
        try {
          await inTransaction(request, (tx) => {
            insert(tx, 'pay-1')
            throw new Error('not enough money')
          })
        } catch {
          return { status: 409, headers: { 'content-type': 'text/plain' }, body: 'poor' }
        }
        return TOO_LATE
      })
      const first = await pay()
      assertRan(first, 409)
      assert.equal(first.text, 'poor')
      assertReplay(await pay(), first)
      assert.deepEqual(await rows(), [])
      assert.equal(runs(), 1)
    },
  },
  {
    name: 'commits one row for ten concurrent requests',
    async run(fixture) {
      const { pay, rows, runs } = await ledger(fixture, async (request) => {
        await inTransaction(request, (tx) => {
          insert(tx, 'pay-1')
          return { status: 201, body: 'paid' }
        })
        return TOO_LATE
      })
      const replies = await Promise.all(Array.from({ length: 10 }, () => pay()))
      for (const reply of replies) {
        if (reply.status === 201) assert.equal(reply.text, 'paid')
        else assertInProgress(reply)
      }
      assert.ok(replies.some(({ status }) => status === 201))
      assert.equal(runs(), 1)
      assert.deepEqual(await rows(), ['pay-1'])
    },
  },
]

type Work = Parameters<NonNullable<CaseRequest['idempotency']>['transaction']>[0]

function inTransaction(request: CaseRequest, work: (tx: Tx) => ReturnType<Work>): Promise<void> {
  return request.idempotency!.transaction<Tx>((tx) => {
    tx.exec('CREATE TABLE IF NOT EXISTS ledger (id TEXT)')
    return work(tx)
  })
}

function insert(tx: Tx, id: string): void {
  tx.prepare('INSERT INTO ledger (id) VALUES (?)').run(id)
}

/** An app with a route that writes to a ledger and a route that reads it. */
async function ledger(fixture: AdapterFixture, handle: CaseHandler) {
  const { send, runs } = await stage(fixture, { handle })
  const reader = await stage(fixture, {
    handle: async (request) => {
      await inTransaction(request, (tx) => ({
        status: 200,
        body: tx.prepare('SELECT id FROM ledger ORDER BY id').all(),
      }))
      return TOO_LATE
    },
  })
  const rows = async (): Promise<string[]> => {
    const { text } = await reader.send({ key: 'rows' })
    return (JSON.parse(text) as { id: string }[]).map(({ id }) => id)
  }
  return { pay: () => send({ key: 'key-1', json: { amount: 1 } }), runs, rows }
}
