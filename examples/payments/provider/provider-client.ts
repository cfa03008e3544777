import { NotExecutedError } from 'oncekey'
import { keyedFetch } from 'oncekey/durable'
import { z } from 'zod'
import type {
  EffectKind,
  EffectRequest,
  LedgerPage,
  ProviderEffect,
} from '../../provider/contract.ts'

/** The payment provider, over HTTP. */
export interface ProviderClient {
  /**
   * Makes the effect once per key. Throws `NotExecutedError` only if there was surely no effect.
   */
  send(kind: EffectKind, request: EffectRequest, call: Call): Promise<ProviderEffect>
  /** Returns the effect of this key, or `undefined` if the provider knows none. */
  find(call: Call): Promise<ProviderEffect | undefined>
  /** All effects, oldest first. */
  ledger(signal: AbortSignal): AsyncIterable<ProviderEffect>
}

export interface Call {
  readonly downstreamKey: string
  readonly signal: AbortSignal
}

/** An answer counts only after validation. */
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

/** Effects per page of the ledger. */
const PAGE = 500

export function createProviderClient(url: string): ProviderClient {
  return {
    async send(kind, request, call) {
      const init = {
        method: 'POST',
        headers: { 'Content-Type': 'application/json' },
        body: JSON.stringify(request),
      }
      // Sends the key of the effect, so that a repeat of this request has no second effect.
      const response = await reach(keyedFetch(call), `${url}/${kind}s`, init)
      if (response.status === 201) return providerEffect.parse(await response.json())
      throw await refusalOf(response)
    },

    async find({ downstreamKey, signal }) {
      const key = encodeURIComponent(downstreamKey)
      const response = await reach(fetch, `${url}/effects?key=${key}`, { signal })
      if (response.status === 404) return undefined
      if (response.status === 200) return providerEffect.parse(await response.json())
      throw new Error(`the provider answered ${response.status} to a query`)
    },

    async *ledger(signal) {
      let after: number | null = 0
      while (after !== null) {
        const response = await reach(fetch, `${url}/ledger?after=${after}&limit=${PAGE}`, {
          signal,
        })
        if (response.status !== 200) {
          throw new Error(`the provider answered ${response.status} to a ledger request`)
        }
        const page = (await response.json()) as LedgerPage
        yield* page.effects
        after = page.next
      }
    },
  }
}

/**
 * The meaning of an answer other than 201. Only the provider's own "refused" states that this
 * request had no effect and will have none. A 503 of a gateway does not, nor does a 500; with a 409
 * another request under the key is in progress. And 400 and 422 (`key_reused`) should be
 * impossible, because the request was stored before it was sent: they prove nothing about the
 * effect. All of these are unknown outcomes: the provider is asked.
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

/** Nothing was sent, because there was no connection. */
const NO_CONNECTION: ReadonlySet<unknown> = new Set(['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN'])

async function reach(send: typeof fetch, url: string, init: RequestInit): Promise<Response> {
  try {
    return await send(url, init)
  } catch (error) {
    if (!isWithoutConnection(error)) throw error
    throw new NotExecutedError('the provider cannot be reached', { cause: error })
  }
}

/** A host name with several addresses has one error for each of them. */
function isWithoutConnection(error: unknown): boolean {
  const cause: unknown = error instanceof Error ? error.cause : undefined
  const causes: unknown[] = cause instanceof AggregateError ? cause.errors : [cause]
  return causes.every((one) => one instanceof Error && 'code' in one && NO_CONNECTION.has(one.code))
}
