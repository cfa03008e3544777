/** Requests of the run to the provider, which no client of the service may send. */
import type {
  Faults,
  FaultsReport,
  LedgerPage,
  ProviderEffect,
} from '../../examples/provider/contract.ts'

export interface ProviderControl {
  readonly url: string
  readonly setFaults: (faults: Faults) => Promise<void>
  /** How often each fault occurred. */
  readonly countFaults: () => Promise<Readonly<Record<string, number>>>
  /** All effects. */
  readonly readLedger: () => Promise<ProviderEffect[]>
}

const PAGE = 1_000
const PAGES_MAX = 10_000
const ANSWER_MS = 10_000

export function providerControl(url: string): ProviderControl {
  const effects: ProviderEffect[] = []
  return {
    url,
    async setFaults(faults) {
      const init = { method: 'PUT', body: JSON.stringify(faults) }
      await ask(`${url}/faults`, { ...init, headers: { 'content-type': 'application/json' } })
    },
    async countFaults() {
      const { counts } = (await ask(`${url}/faults`)) as FaultsReport
      return counts
    },
    async readLedger() {
      // Entries are never changed or removed, so reading page by page is complete.
      for (let pages = 0; pages < PAGES_MAX; pages++) {
        const after = effects.at(-1)?.sequence ?? 0
        const page = (await ask(`${url}/ledger?after=${after}&limit=${PAGE}`)) as LedgerPage
        effects.push(...page.effects)
        if (page.next === null) return [...effects]
      }
      throw new Error(`the ledger of the provider has more than ${PAGES_MAX} pages`)
    },
  }
}

async function ask(url: string, init: RequestInit = {}): Promise<unknown> {
  const answer = await fetch(url, { ...init, signal: AbortSignal.timeout(ANSWER_MS) })
  const text = await answer.text()
  if (!answer.ok) throw new Error(`the provider answered ${url} with ${answer.status}: ${text}`)
  return text === '' ? undefined : JSON.parse(text)
}
