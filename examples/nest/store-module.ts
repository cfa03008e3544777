import { join } from 'node:path'
import { Inject, Module, type OnApplicationShutdown } from '@nestjs/common'
import { sqliteStore, type SqliteStore } from 'oncekey/sqlite'

export const STORE = Symbol('store')

/** Keys and payments share one file, so that they can share a transaction. */
@Module({
  providers: [{ provide: STORE, useFactory: () => sqliteStore({ path: databasePath() }) }],
  exports: [STORE],
})
export class StoreModule implements OnApplicationShutdown {
  readonly #store: SqliteStore

  constructor(@Inject(STORE) store: SqliteStore) {
    this.#store = store
  }

  /** Runs after IdempotencyModule has settled the work in progress. */
  async onApplicationShutdown(): Promise<void> {
    await this.#store.close()
  }
}

export function databasePath(): string {
  return join(process.env['DATA_DIR'] ?? 'data', 'nest.db')
}
