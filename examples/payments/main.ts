/**
 * A payments API that is safe to retry. `npm start` runs it.
 *
 * This file reads the environment, starts the service, and shuts it down without interrupting a
 * payment. `service.ts` assembles the service, and `api.ts` in `http` has its routes.
 */
import { startService } from './service.ts'
import { readSettings } from './settings.ts'
import { welcome } from './welcome.ts'

try {
  const settings = readSettings(process.env)
  const service = await startService(settings)
  console.log(welcome(settings, service.port))

  // `once`: a second Ctrl-C ends the process at once.
  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    process.once(signal, () => {
      service.stop().then(() => process.exit(0), fail)
    })
  }
} catch (error) {
  fail(error)
}

/** Prints one sentence: the operator needs the cause, not a stack trace. */
function fail(error: unknown): never {
  console.error(error instanceof Error ? error.message : error)
  process.exit(1)
}
