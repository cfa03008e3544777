import type { AdapterCase } from './adapter-cases/adapter-case.ts'
import { bodyCases } from './adapter-cases/body-cases.ts'
import { concurrencyCases } from './adapter-cases/concurrency-cases.ts'
import { connectionCases } from './adapter-cases/connection-cases.ts'
import { contextCases } from './adapter-cases/context-cases.ts'
import { damageCases } from './adapter-cases/damage-cases.ts'
import { failureCases } from './adapter-cases/failure-cases.ts'
import { headerCases } from './adapter-cases/header-cases.ts'
import { joinCases } from './adapter-cases/join-cases.ts'
import { keyCases } from './adapter-cases/key-cases.ts'
import { optionCases } from './adapter-cases/option-cases.ts'
import { releaseCases } from './adapter-cases/release-cases.ts'
import { requestCases } from './adapter-cases/request-cases.ts'
import { replayCases } from './adapter-cases/replay-cases.ts'
import { statusCases } from './adapter-cases/status-cases.ts'
import { storeFailureCases } from './adapter-cases/store-failure-cases.ts'
import { transactionCases } from './adapter-cases/transaction-cases.ts'
import { transactionFailureCases } from './adapter-cases/transaction-failure-cases.ts'

export { adaptOptions, adaptStatusOptions } from './adapter-cases/adapter-case.ts'
export type {
  AdapterAbility,
  AdapterCase,
  AdapterFixture,
  AdapterSubject,
  CaseApp,
  CaseHandler,
  CaseHead,
  CaseOptions,
  CaseReply,
  CaseRequest,
  CaseRoute,
  CaseStatus,
  ServedApp,
} from './adapter-cases/adapter-case.ts'

/** Cases that every framework adapter must pass. Run each one with any test runner. */
export const adapterCases: readonly AdapterCase[] = [
  ...replayCases,
  ...bodyCases,
  ...headerCases,
  ...keyCases,
  ...requestCases,
  ...concurrencyCases,
  ...connectionCases,
  ...failureCases,
  ...storeFailureCases,
  ...contextCases,
  ...transactionCases,
  ...transactionFailureCases,
  ...joinCases,
  ...releaseCases,
  ...optionCases,
  ...statusCases,
  ...damageCases,
]
