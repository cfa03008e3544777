import { createApi } from './api.ts'
import type { Faults, ProviderEffect } from './contract.ts'
import { openDatabase } from './database.ts'
import { createDeliveryQueue } from './delivery-queue.ts'
import { checkFaults, createFaultPlan, type FaultPlan } from './faults.ts'
import { createHttpServer } from './http-server.ts'
import { createLateEffects } from './late-effects.ts'
import { createLedger, type KeyedRequest } from './ledger.ts'
import { createWebhooks, type WebhookTuning } from './webhooks.ts'

export interface ProviderOptions {
  /** @default 0, any free port */
  readonly port?: number
  /** @default '127.0.0.1' */
  readonly host?: string
  /** Folder of `provider.db`. One provider at a time. */
  readonly dataFolder: string
  /** Receivers: each event goes to one of them in turn, and to the next if that one fails. */
  readonly webhookUrls?: readonly string[]
  /** The secret that signs webhooks. Without it no webhooks are sent. */
  readonly webhookSecret?: string
  /** How long a key is recognised. After that it makes a second effect. @default 24 hours */
  readonly keyRetentionMs?: number
  readonly faults?: Faults
  /** The same seed makes the same choices. @default 1 */
  readonly seed?: number | string
  readonly webhookTuning?: WebhookTuning
  /** Milliseconds since 1970. @default Date.now */
  readonly now?: () => number
  /** Called with errors that no client sees, such as a disk failure. @default prints them */
  readonly onError?: (error: unknown) => void
}

export interface Provider {
  readonly url: string
  /** Replaces all faults. */
  setFaults(faults: Faults): void
  setWebhookUrls(urls: readonly string[]): void
  /** Finishes requests in progress. Late effects and undelivered events stay on the disk. */
  close(): Promise<void>
}

const DAY_MS = 24 * 60 * 60_000
const QUEUE_MAX = 10_000
const HELD_MAX_MS = 500

/** A payment provider for tests: an API, a ledger on the disk, webhooks, and named faults. */
export async function createProvider(options: ProviderOptions): Promise<Provider> {
  const { port = 0, host = '127.0.0.1', webhookSecret, seed = 1 } = options
  const urls = checkUrls(options.webhookUrls ?? [], webhookSecret)
  checkRetention(options.keyRetentionMs)
  const faultPlan = createFaultPlan(validFaults(options.faults ?? {}), seed)
  const parts = assemble(options, faultPlan, urls)
  try {
    // Effects that are overdue from the last process are made before any request is answered.
    parts.late.restore()
    const url = await parts.server.listen(port, host)
    parts.webhooks.wake()
    let closed: Promise<void> | undefined
    return {
      url,
      setFaults(faults) {
        faultPlan.faults = validFaults(faults)
      },
      setWebhookUrls: (list) => parts.webhooks.setUrls(checkUrls(list, webhookSecret)),
      close: () => (closed ??= parts.close()),
    }
  } catch (error) {
    await parts.close()
    throw error
  }
}

function assemble(options: ProviderOptions, faultPlan: FaultPlan, urls: readonly string[]) {
  const { webhookSecret: secret, webhookTuning: tuning = {}, keyRetentionMs = DAY_MS } = options
  const { now = Date.now, onError = printError } = options
  const closing = new AbortController()
  const database = openDatabase(options.dataFolder)
  const { queueMax = QUEUE_MAX, heldMaxMs = HELD_MAX_MS } = tuning
  const queue = createDeliveryQueue({ database, now, faultPlan, queueMax, heldMaxMs })
  const webhooks = createWebhooks({ queue, secret: secret ?? '', urls, tuning, now, onError })
  const announce = (effect: ProviderEffect) => {
    if (secret !== undefined) queue.add(effect)
  }
  const ledger = createLedger({ database, keyRetentionMs, now, announce })
  const onEffect = () => webhooks.wake()
  const late = createLateEffects({ ledger, now, onEffect, onError })
  const health = () => {
    const { dropped } = queue
    const pending = queue.countPending()
    return { status: 'ok', webhooks: { pending, dropped, givenUp: webhooks.givenUp } }
  }
  const postpone = (request: KeyedRequest, afterMs: number) => late.postpone(request, afterMs)
  const common = { ledger, faultPlan, onEffect, onError }
  const api = createApi({ ...common, postpone, health, closing: closing.signal })
  const server = createHttpServer((req, res) => api.answer(req, res))
  const close = async (): Promise<void> => {
    closing.abort()
    late.close()
    await Promise.all([server.close(), webhooks.close()])
    database.close()
  }
  return { server, webhooks, late, close }
}

function validFaults(value: Faults): Faults {
  const checked = checkFaults(value)
  if (checked.kind === 'invalid') throw new Error(checked.message)
  return checked.faults
}

function checkRetention(keyRetentionMs = 0): void {
  if (keyRetentionMs >= 0) return
  throw new Error(`keyRetentionMs must be a number of at least 0, got ${keyRetentionMs}.`)
}

function checkUrls(urls: readonly string[], secret: string | undefined): readonly string[] {
  if (secret === '') throw new Error('webhookSecret must not be empty: leave it out for none.')
  if (urls.length > 0 && secret === undefined) {
    throw new Error('Webhooks are signed: webhookUrls need a webhookSecret.')
  }
  const wrong = urls.find((url) => !/^https?:$/.test(URL.parse(url)?.protocol ?? ''))
  if (wrong !== undefined) {
    throw new Error(`${JSON.stringify(wrong)} is not the URL of a receiver: http://… or https://…`)
  }
  return [...urls]
}

function printError(error: unknown): void {
  console.error('provider:', error)
}
