/** The system of a soak: the whole service as one process, and its database. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { TOKENS } from './draft.ts'
import { GOOD_TENANT, GOOD_TOKEN } from './good-clients.ts'
import type { SoakOptions } from './options.ts'
import { startService, type ServiceProcess } from './service-process.ts'
import { openSoakDatabase, type SoakDatabase } from './stored-rows.ts'

export interface SoakSystem {
  readonly service: ServiceProcess
  readonly database: SoakDatabase
  /** Stops the service, and returns its exit code. */
  readonly close: () => Promise<number | null>
}

/** Short, so that the stored rows are bounded; longer than the retries of any client here. */
const RETENTION_MS = 20_000
const LEASE_MS = 10_000
/** Bounded, so that a slow machine does not use more memory. */
const IN_FLIGHT_MAX = 50
const REQUEST_TIMEOUT_MS = 2_000

export async function startSystem(
  { store, root }: Pick<SoakOptions, 'store' | 'root'>,
  rate: number,
): Promise<SoakSystem> {
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-soak-'))
  const database = await openSoakDatabase(store, folder)
  const closeRest = async () => {
    await database.close()
    rmSync(folder, { recursive: true, force: true })
  }
  try {
    const env = {
      DATA_DIR: folder,
      DATABASE_URL: database.url,
      NEW_KEYS_PER_SECOND: `${rate}`,
      RETENTION_MS: `${RETENTION_MS}`,
      REFUSE_LATE_MS: `${RETENTION_MS}`,
      LEASE_MS: `${LEASE_MS}`,
      IN_FLIGHT_MAX: `${IN_FLIGHT_MAX}`,
      REQUEST_TIMEOUT_MS: `${REQUEST_TIMEOUT_MS}`,
      TOKENS: [`${GOOD_TOKEN}=${GOOD_TENANT}`, `${TOKENS.a}=tenant-a`, `${TOKENS.b}=tenant-b`].join(
        ',',
      ),
      // Suppresses the warning about the short retention, which is intended.
      NODE_NO_WARNINGS: '1',
    }
    const service = await startService(root === undefined ? { env } : { env, root })
    return {
      service,
      database,
      close: async () => {
        const code = await service.stop()
        await closeRest()
        return code
      },
    }
  } catch (error) {
    await closeRest()
    throw error
  }
}
