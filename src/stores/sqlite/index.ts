export { sqliteStore } from './store.ts'
export type { SqliteStore } from './store.ts'
export type { SqliteStoreOptions } from './options.ts'
export type { SqliteStatement, SqliteTransaction, SqliteValue } from './transaction.ts'
