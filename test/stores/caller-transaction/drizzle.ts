/**
 * Drizzle, loaded without its type declarations: they refer to packages that are not installed
 * here, and the type check of this repository includes the declarations of libraries.
 */
import { createRequire } from 'node:module'

export interface DrizzleTransaction {
  execute(query: unknown): PromiseLike<unknown>
}

export interface DrizzleDatabase {
  transaction<Result>(body: (tx: DrizzleTransaction) => Promise<Result>): Promise<Result>
}

type Drizzle = (client: unknown) => DrizzleDatabase

const require = createRequire(import.meta.url)
const drizzleFrom = (path: string) => (require(path) as { drizzle: Drizzle }).drizzle

export const drizzlePg: Drizzle = drizzleFrom('drizzle-orm/node-postgres')
export const drizzleJs: Drizzle = drizzleFrom('drizzle-orm/postgres-js')
export const drizzleMysql: Drizzle = drizzleFrom('drizzle-orm/mysql2')

export const { sql: drizzleSql } = require('drizzle-orm') as {
  sql: (strings: TemplateStringsArray, ...values: readonly unknown[]) => unknown
}
