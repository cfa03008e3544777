import pg from 'pg'
import { onTestFinished } from 'vitest'
import { postgresStore, type PostgresStore } from '../../../src/stores/postgres/index.ts'

export interface PlannedCase {
  readonly name: string
  readonly run: (store: PostgresStore, from: number) => Promise<unknown>
  /** The indexes that the call may use. */
  readonly by: readonly string[]
  /** Rows that one node may read, beyond the batch or the limit. */
  readonly more?: number
}

interface PlanNode {
  readonly 'Node Type': string
  readonly 'Relation Name'?: string
  readonly 'Index Name'?: string
  readonly 'Actual Rows': number
  readonly 'Actual Loops': number
  readonly 'Rows Removed by Filter'?: number
  readonly Plans?: readonly PlanNode[]
}

/** A table of one row, which is read with a sequential scan. */
const ONE_ROW = 'oncekey_record_waiting'

/**
 * Runs a call and returns which plans its statements used, including statements inside functions.
 * `onlyRun`: leaves out the parts of plans that were not executed.
 */
export async function planner(url: string, { onlyRun }: { onlyRun?: boolean } = {}) {
  const client = new pg.Client({ connectionString: url })
  const plans: PlanNode[] = []
  client.on('notice', ({ message = '' }) => {
    const json = message.slice(message.indexOf('{'))
    if (message.includes('plan:')) plans.push((JSON.parse(json) as { Plan: PlanNode }).Plan)
  })
  await client.connect()
  onTestFinished(() => client.end())
  await client.query(`LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0;
    SET auto_explain.log_nested_statements = on; SET auto_explain.log_analyze = on;
    SET auto_explain.log_timing = off; SET auto_explain.log_format = json;
    SET client_min_messages = log`)
  const store = postgresStore({ pool: client, history: true })
  return async (call: (store: PostgresStore, client: pg.Client) => Promise<unknown>) => {
    plans.length = 0
    await call(store, client)
    const nodes = plans.flatMap((plan) => [...walk(plan)])
    const scans = nodes.filter((node) => {
      const relation = node['Relation Name'] ?? ''
      const isCounted = onlyRun !== true || node['Actual Loops'] > 0
      return isCounted && relation.startsWith('oncekey_record') && relation !== ONE_ROW
    })
    return {
      // A node that writes also names its table.
      indexes: new Set(
        scans
          .filter((node) => node['Node Type'] !== 'ModifyTable')
          .map((node) => node['Index Name'] ?? node['Node Type']),
      ),
      kinds: new Set(nodes.map((node) => node['Node Type'])),
      rowsMax: Math.max(...scans.map(touched)),
      rows: scans.map(touched).reduce((sum, rows) => sum + rows, 0),
    }
  }
}

function* walk(node: PlanNode): Generator<PlanNode> {
  yield node
  for (const child of node.Plans ?? []) yield* walk(child)
}

function touched(node: PlanNode): number {
  return (node['Actual Rows'] + (node['Rows Removed by Filter'] ?? 0)) * node['Actual Loops']
}
