import { abandonCases, acceptCases } from './store-cases/accept-cases.ts'
import { claimCases } from './store-cases/claim-cases.ts'
import { findCases } from './store-cases/find-cases.ts'
import { historyCases } from './store-cases/history-cases.ts'
import {
  clockSetBackCases,
  lapseCases,
  lateHolderCases,
  sweepCases,
} from './store-cases/lapse-cases.ts'
import { identityCases, readingCases } from './store-cases/reading-cases.ts'
import { reapCases, retentionCases } from './store-cases/retention-cases.ts'
import { discardCases, seedCases } from './store-cases/seed-cases.ts'
import { renewCases, settleCases } from './store-cases/settle-cases.ts'
import type { StoreCase } from './store-cases/store-case.ts'
import { tombstoneCases } from './store-cases/tombstone-cases.ts'
import { transactionCases } from './store-cases/transaction-cases.ts'
import { verdictCases } from './store-cases/verdict-cases.ts'

/**
 * Cases that every store must pass. They are data and not `it()` calls, so that any test runner and
 * the author of a store outside this repository can run them. Run each case on a new, empty store.
 */
export const storeCases: readonly StoreCase[] = [
  ...claimCases,
  ...findCases,
  ...seedCases,
  ...settleCases,
  ...renewCases,
  ...lapseCases,
  ...lateHolderCases,
  ...sweepCases,
  ...clockSetBackCases,
  ...verdictCases,
  ...retentionCases,
  ...reapCases,
  ...tombstoneCases,
  ...discardCases,
  ...acceptCases,
  ...abandonCases,
  ...historyCases,
  ...readingCases,
  ...identityCases,
  ...transactionCases,
]

export { claimRequest, claimRequests } from './store-cases/store-case.ts'
export type { StoreCase, StoreFixture, StoreNeed } from './store-cases/store-case.ts'
