import { NotExecutedError } from 'oncekey'
import { z } from 'zod'
import type { EffectKind, EffectRequest, LedgerPage, ProviderEffect } from '../provider/contract.ts'

/** The payment provider, over HTTP. */
export interface ProviderClient {
  /** Has the effect, once for each key. Throws `NotExecutedError` only where that is certain. */
  send(kind: EffectKind, request: EffectRequest, call: Call): Promise<ProviderEffect>
  /** What became of a request under this key; `undefined` where the provider knows of none. */
  find(call: Call): Promise<ProviderEffect | undefined>
  /** Everything it has done, oldest first. */
  ledger(signal: AbortSignal): AsyncIterable<ProviderEffect>
}

export interface Call {
  readonly downstreamKey: string
  readonly signal: AbortSignal
}

/** An answer is believed once it has been read: what is not like this is no answer. */
export const providerEffect = z.looseObject({
  id: z.string().min(1).max(64),
  kind: z.enum(['charge', 'hold', 'capture', 'refund', 'payout']),
  status: z.enum(['succeeded', 'declined']),
  amountCents: z.int(),
  currency: z.string(),
  reference: z.string(),
  account: z.string(),
  key: z.string(),
  sequence: z.int(),
  createdAt: z.iso.datetime(),
})

/** Effects that are asked for in one page of the ledger. */
const PAGE = 500

export function createProviderClient(url: string): ProviderClient {
  return {
    async send(kind, request, { downstreamKey, signal }) {
      const response = await reach(`${url}/${kind}s`, {
        method: 'POST',
        headers: { 'Content-Type': 'application/json', 'Idempotency-Key': downstreamKey },
        body: JSON.stringify(request),
        signal,
      })
      if (response.status === 201) return providerEffect.parse(await response.json())
      throw await refusalOf(response)
    },

    async find({ downstreamKey, signal }) {
      const key = encodeURIComponent(downstreamKey)
      const response = await reach(`${url}/effects?key=${key}`, { signal })
      if (response.status === 404) return undefined
      if (response.status === 200) return providerEffect.parse(await response.json())
      throw new Error(`the provider answered ${response.status} when it was asked`)
    },

    async *ledger(signal) {
      let after: number | null = 0
      while (after !== null) {
        const response = await reach(`${url}/ledger?after=${after}&limit=${PAGE}`, { signal })
        if (response.status !== 200) {
          throw new Error(`the provider answered ${response.status} when asked for its ledger`)
        }
        const page = (await response.json()) as LedgerPage
        yield* page.effects
        after = page.next
      }
    },
  }
}

/**
 * What an answer other than 201 proves. Only the provider's own "refused" says that this request
 * had no effect and will have none. A 503 of a gateway does not say that, nor does a 500; with a
 * 409 another request under the key is under way. And 400 and 422 (`key_reused`) should be
 * impossible, for the request was stored before it was sent: whoever gets one knows less than
 * before, and not that nothing happened. All of these are unknown outcomes: the provider is asked.
 */
async function refusalOf(response: Response): Promise<Error> {
  const code = await errorCodeOf(response)
  if (response.status === 503 && code === 'refused') {
    return new NotExecutedError('the provider refused the request')
  }
  return new Error(`the provider answered ${response.status} ${code ?? 'without a code'}`)
}

async function errorCodeOf(response: Response): Promise<string | undefined> {
  const errorBody = z.object({ error: z.object({ code: z.string() }) })
  const body: unknown = await response.json().catch(() => undefined)
  return errorBody.safeParse(body).data?.error.code
}

/** Nothing was sent: there was no connection to send it on. */
const NO_CONNECTION: ReadonlySet<unknown> = new Set(['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN'])

async function reach(url: string, init: RequestInit): Promise<Response> {
  try {
    return await fetch(url, init)
  } catch (error) {
    if (!isWithoutConnection(error)) throw error
    throw new NotExecutedError('the provider cannot be reached', { cause: error })
  }
}

/** A name with several addresses has one error for each of them. */
function isWithoutConnection(error: unknown): boolean {
  const cause: unknown = error instanceof Error ? error.cause : undefined
  const causes: unknown[] = cause instanceof AggregateError ? cause.errors : [cause]
  return causes.every((one) => one instanceof Error && 'code' in one && NO_CONNECTION.has(one.code))
}
