export { describeIdempotency } from './openapi.ts'
export type { OpenApiOperation, OpenApiOptions, OperationFilter } from './openapi.ts'
