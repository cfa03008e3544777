import { parseFaults } from './faults.ts'
import type { ProviderOptions } from './provider.ts'

/** Throws an error with one sentence about an invalid setting. */
export function readSettings(env: NodeJS.ProcessEnv): ProviderOptions {
  const faults = parseFaults(env['FAULTS'] ?? '')
  if (faults.kind === 'invalid') throw new Error(`FAULTS: ${faults.message}`)
  const port = numberOf(env, 'PORT', 65_535)
  const keyRetentionMs = numberOf(env, 'KEY_RETENTION_MS', Number.MAX_SAFE_INTEGER)
  const webhookUrls = (env['WEBHOOK_URLS'] ?? '').split(',').flatMap((url) => url.trim() || [])
  // An empty variable counts as not set.
  const webhookSecret = env['WEBHOOK_SECRET'] || undefined
  if (webhookUrls.length > 0 && webhookSecret === undefined) {
    throw new Error('WEBHOOK_URLS needs WEBHOOK_SECRET, with which the receivers check signatures.')
  }
  return {
    dataFolder: env['DATA_DIR'] || './data',
    faults: faults.faults,
    webhookUrls,
    ...(port !== undefined && { port }),
    ...(keyRetentionMs !== undefined && { keyRetentionMs }),
    ...(webhookSecret !== undefined && { webhookSecret }),
    ...(env['SEED'] && { seed: env['SEED'] }),
  }
}

function numberOf(env: NodeJS.ProcessEnv, name: string, max: number): number | undefined {
  const text = env[name] || undefined
  if (text === undefined) return undefined
  if (!/^\d{1,16}$/.test(text) || Number(text) > max) {
    throw new Error(`${name} must be a number from 0 to ${max}, got ${JSON.stringify(text)}.`)
  }
  return Number(text)
}
