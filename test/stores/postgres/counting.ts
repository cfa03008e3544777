import pg from 'pg'
import { onTestFinished } from 'vitest'

type Query = string | { readonly text: string }

/**
 * A pool that records each statement that it sends, and the codes of errors. `failOnce`: the first
 * statement with this text fails with a conflict and is not sent.
 */
export function countingPool(url: string, { failOnce }: { failOnce?: string } = {}) {
  const statements: string[] = []
  const codes: unknown[] = []
  let failing = failOnce

  class CountingClient extends pg.Client {
    override query(...values: never[]): never {
      const [query] = values as unknown as readonly [Query]
      const text = typeof query === 'string' ? query : query.text
      statements.push(text)
      if (failing !== undefined && text.includes(failing)) {
        failing = undefined
        const conflict = Object.assign(new Error('simulated conflict'), { code: '40001' })
        return Promise.reject(conflict) as never
      }
      const send = super.query.bind(this) as (...args: never[]) => unknown
      const answer = send(...values)
      if (answer instanceof Promise) {
        answer.catch((error: unknown) => codes.push((error as { code?: unknown }).code))
      }
      return answer as never
    }
  }

  const pool = new pg.Pool({ connectionString: url, Client: CountingClient, max: 20 })
  pool.on('error', () => undefined)
  onTestFinished(() => pool.end())
  return { pool, sent: () => [...statements], errors: () => [...codes] }
}
