/**
 * A payments API that is safe to retry. `npm start` runs it.
 *
 * This file reads the environment, starts the service, and stops it without cutting a payment in
 * two. What the service is made of is in `service.ts`, its routes are in `api.ts`.
 */
import { startService } from './service.ts'
import { readSettings } from './settings.ts'
import { welcome } from './welcome.ts'

try {
  const settings = readSettings(process.env)
  const service = await startService(settings)
  console.log(welcome(settings, service.port))

  // Once: a second Ctrl-C ends the process at once, as people expect.
  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    process.once(signal, () => {
      service.stop().then(() => process.exit(0), fail)
    })
  }
} catch (error) {
  fail(error)
}

/** In one sentence: what to change matters, not where it was noticed. */
function fail(error: unknown): never {
  console.error(error instanceof Error ? error.message : error)
  process.exit(1)
}
