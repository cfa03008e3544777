/** The query plans that PostgreSQL logs for the statements of a pool. */
import pg from 'pg'
import { onTestFinished } from 'vitest'

export interface Plan {
  readonly 'Node Type': string
  readonly 'Relation Name'?: string
  readonly 'Index Name'?: string
  readonly 'Conflict Resolution'?: string
  readonly 'Conflict Arbiter Indexes'?: readonly string[]
  readonly Plans?: readonly Plan[]
}

/** Also explains statements inside functions, because the claim is a function. */
const SETTINGS = [
  'session_preload_libraries=auto_explain',
  'auto_explain.log_min_duration=0',
  'auto_explain.log_nested_statements=on',
  'auto_explain.log_format=json',
  'client_min_messages=log',
]

/** A pool whose statements are explained as they run. */
export function explainedPool(url: string): { pool: pg.Pool; nodes: () => Plan[] } {
  const options = SETTINGS.map((setting) => `-c ${setting}`).join(' ')
  const pool = new pg.Pool({ connectionString: url, options })
  const plans: Plan[] = []
  pool.on('connect', (client) => {
    client.on('notice', ({ message = '' }) => {
      if (!message.includes('plan:')) return
      const json = message.slice(message.indexOf('{'))
      plans.push((JSON.parse(json) as { Plan: Plan }).Plan)
    })
  })
  onTestFinished(() => pool.end())
  return { pool, nodes: () => plans.flatMap((plan) => [...walk(plan)]) }
}

function* walk(node: Plan): Generator<Plan> {
  yield node
  for (const child of node.Plans ?? []) yield* walk(child)
}
