export { FakeClock } from './fake-clock.ts'
export { claimRequest, claimRequests, storeCases } from './store-cases.ts'
export type { StoreCase, StoreFixture } from './store-cases.ts'
