export { sqliteStore } from './sqlite-store.ts'
export type { SqliteStore } from './sqlite-store.ts'
export type { SqliteStoreOptions } from './options.ts'
export type { SqliteStatement, SqliteTransaction, SqliteValue } from './transaction.ts'
