import { DatabaseSync } from 'node:sqlite'
import { Inject, Injectable, NotFoundException, type OnApplicationShutdown } from '@nestjs/common'
import { currentIdempotency } from 'oncekey'
import type { SqliteStore, SqliteTransaction } from 'oncekey/sqlite'
import { databasePath, STORE } from './store-module.ts'

export interface Payment {
  readonly id: string
  readonly amountCents: number
}

/** For a retry after the retention, whose id is the same, returns the row of the first payment. */
const INSERT = `
  INSERT INTO payments (id, amount_cents) VALUES (?, ?)
  ON CONFLICT (id) DO UPDATE SET id = id RETURNING amount_cents AS amountCents`

@Injectable()
export class PaymentsService implements OnApplicationShutdown {
  readonly #database: DatabaseSync

  /** Depends on the store because that creates the file. */
  constructor(@Inject(STORE) _store: SqliteStore) {
    this.#database = new DatabaseSync(databasePath())
    this.#database.exec(
      'CREATE TABLE IF NOT EXISTS payments (id TEXT PRIMARY KEY, amount_cents INTEGER NOT NULL)',
    )
  }

  /** Payment, key and reply are committed together; then the reply is sent. */
  async create(amountCents: number): Promise<void> {
    const idempotency = currentIdempotency()
    const id = idempotency.deterministicId('payment')
    await idempotency.transaction<SqliteTransaction>((tx) => {
      const paid = tx.prepare(INSERT).get(id, amountCents)
      return { status: 201, headers: { location: `/payments/${id}` }, body: { id, ...paid } }
    })
  }

  read(id: string): Payment {
    const query = 'SELECT id, amount_cents AS amountCents FROM payments WHERE id = ?'
    const found = this.#database.prepare(query).get(id)
    if (found === undefined) throw new NotFoundException()
    return { id: String(found['id']), amountCents: Number(found['amountCents']) }
  }

  onApplicationShutdown(): void {
    this.#database.close()
  }
}
