export { adaptOptions, adaptStatusOptions, adapterCases } from './adapter-cases.ts'
export { durableCases } from './durable-cases.ts'
export { FakeClock } from './fake-clock.ts'
export { claimRequest, claimRequests, storeCases } from './store-cases.ts'
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
} from './adapter-cases.ts'
export type { DurableCase, DurableFixture } from './durable-cases.ts'
export type { StoreCase, StoreFixture } from './store-cases.ts'
