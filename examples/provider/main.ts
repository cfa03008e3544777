/**
 * A payment provider for demos and tests, with named faults. See README.md in this folder.
 *
 *   FAULTS=effectThenDrop=0.1,latency=0.2 PORT=4000 npx node examples/provider/main.ts
 */
import { createProvider } from './provider.ts'
import { readSettings } from './settings.ts'

try {
  await start()
} catch (error) {
  console.error(error instanceof Error ? error.message : error)
  process.exit(1)
}

async function start(): Promise<void> {
  const provider = await createProvider(readSettings(process.env))
  console.log(`provider listening on ${provider.url}`)
  // `once`: a second Ctrl-C ends the process at once.
  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    process.once(signal, () => {
      void provider.close().then(() => process.exit(0))
    })
  }
}
