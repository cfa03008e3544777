import { auditCases, recordActCases } from './durable-cases/act-cases.ts'
import { advanceCases } from './durable-cases/advance-cases.ts'
import { discardActCases, tombstoneOperationCases } from './durable-cases/discard-cases.ts'
import { concludeCases } from './durable-cases/conclude-cases.ts'
import { postponeCases, unknownCases } from './durable-cases/unknown-cases.ts'
import { dueTurnCases } from './durable-cases/due-turn-cases.ts'
import type { DurableCase } from './durable-cases/durable-case.ts'
import { messageActCases, messageSettleCases } from './durable-cases/message-settle-cases.ts'
import {
  messageFloodCases,
  messageTenantCases,
  messageTurnCases,
} from './durable-cases/message-turn-cases.ts'
import { addCases, messageClaimCases, messageListCases } from './durable-cases/outbox-cases.ts'
import { partitionCases } from './durable-cases/partition-cases.ts'
import { keptOperationCases, resumeCases } from './durable-cases/resume-cases.ts'
import { unknownTurnCases } from './durable-cases/unknown-turn-cases.ts'
import { unrelayedCases } from './durable-cases/unrelayed-cases.ts'
import { fencedStepCases, stepCases } from './durable-cases/step-cases.ts'

/**
 * Cases that every store with `durable` must pass. Run each case on a new, empty store with any
 * test runner.
 */
export const durableCases: readonly DurableCase[] = [
  ...stepCases,
  ...fencedStepCases,
  ...advanceCases,
  ...resumeCases,
  ...keptOperationCases,
  ...dueTurnCases,
  ...unknownCases,
  ...unknownTurnCases,
  ...postponeCases,
  ...concludeCases,
  ...recordActCases,
  ...discardActCases,
  ...tombstoneOperationCases,
  ...auditCases,
  ...addCases,
  ...messageClaimCases,
  ...messageListCases,
  ...messageSettleCases,
  ...messageActCases,
  ...partitionCases,
  ...messageTenantCases,
  ...messageTurnCases,
  ...messageFloodCases,
  ...unrelayedCases,
]

export type { DurableCase, DurableFixture } from './durable-cases/durable-case.ts'
