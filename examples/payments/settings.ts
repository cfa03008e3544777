export interface Settings {
  readonly port: number
  readonly dataFolder: string
}

/** Fails with a sentence for whoever starts the service. */
export function readSettings(env: NodeJS.ProcessEnv): Settings {
  const port = env['PORT'] ?? '3000'
  if (!/^\d{1,5}$/.test(port) || Number(port) > 65_535) {
    throw new Error(`PORT must be a number from 0 to 65535, got ${JSON.stringify(port)}.`)
  }
  // An empty DATA_DIR is a mistake in a script, not a wish for the root folder.
  return { port: Number(port), dataFolder: env['DATA_DIR'] || './data' }
}
