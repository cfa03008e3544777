/**
 * The cost of an operation: as few commits as the guarantees allow. A process may crash between any
 * two commits, and each one records a fact that must survive the crash:
 *
 * 1. the claim: no other process runs the operation
 * 2. `record`: the rows are written, and are not written again
 * 3. the intent: an effect may have been sent, and with which key
 * 4. the result: the effect happened and must not be sent again
 * 5. `book`: rows, receipt, reply and the end of the lease
 */
import { DatabaseSync } from 'node:sqlite'
import { expect, it, onTestFinished, vi } from 'vitest'
import type { SqliteTransaction } from '../../../src/stores/sqlite/index.ts'
import { setup } from '../../stores/sqlite/setup.ts'
import { onePhase, quietEngine, runCounted, threePhases } from './commit-count-payment.ts'

const BEGIN = 'BEGIN IMMEDIATE'

const write = (tx: unknown, row: string) => {
  ;(tx as SqliteTransaction).prepare('INSERT INTO payment VALUES (?)').run(row.length)
}

it('takes five commits and five store calls for an operation of three phases', async () => {
  const { committed } = countTransactions()
  const { store } = setup()
  const engine = quietEngine(store)
  const calls = countCalls(store)
  const before = committed()
  expect(await runCounted(engine, threePhases(engine, write))).toBe('ran')
  expect(committed() - before).toBe(5)
  expect(calls).toEqual(['claim', 'advance', 'record', 'record', 'advance'])
})

it('takes two commits and two store calls for an operation of one phase', async () => {
  const { committed } = countTransactions()
  const { store } = setup()
  const engine = quietEngine(store)
  const calls = countCalls(store)
  const before = committed()
  expect(await runCounted(engine, onePhase(write))).toBe('ran')
  expect(committed() - before).toBe(2)
  expect(calls).toEqual(['claim', 'advance'])
})

it('takes no commit and one store call for the reply of an operation that has ended', async () => {
  const { committed } = countTransactions()
  const { store } = setup()
  const engine = quietEngine(store)
  await runCounted(engine, onePhase(write))
  const before = committed()
  const calls = countCalls(store)
  expect(await runCounted(engine, onePhase(write))).toBe('replayed')
  expect(committed() - before).toBe(0)
  expect(calls).toEqual(['claim'])
})

/** Counts the write transactions of every connection that is opened after this call. */
function countTransactions() {
  const ran: string[] = []
  const prepare = DatabaseSync.prototype.prepare
  const spy = vi.spyOn(DatabaseSync.prototype, 'prepare').mockImplementation(function (
    this: DatabaseSync,
    sql: string,
  ) {
    const statement = prepare.call(this, sql)
    if (sql !== BEGIN && sql !== 'COMMIT') return statement
    const run = statement.run.bind(statement)
    statement.run = () => {
      ran.push(sql)
      return run()
    }
    return statement
  })
  onTestFinished(() => spy.mockRestore())
  // A read transaction ends with COMMIT, too, but does not begin with BEGIN IMMEDIATE.
  const isWrite = (sql: string, at: number) => sql === 'COMMIT' && ran[at - 1] === BEGIN
  return { committed: () => ran.filter(isWrite).length }
}

/** The store calls of the engine, in order. */
function countCalls(store: ReturnType<typeof setup>['store']): string[] {
  const calls: string[] = []
  const watch = <Name extends string>(
    target: { [name in Name]: (...values: never[]) => unknown },
    name: Name,
  ) => {
    const original = target[name].bind(target)
    target[name] = (...values: never[]) => {
      calls.push(name)
      return original(...values)
    }
  }
  for (const name of ['claim', 'settle', 'renew', 'read'] as const) watch(store, name)
  for (const name of ['advance', 'record', 'load'] as const) watch(store.durable.phases, name)
  return calls
}
