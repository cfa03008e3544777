/**
 * The parts of the AWS SDK's `DynamoDB` client that the store uses. Described here and not
 * imported, because the package depends on no SDK; a client with the same interface works as well.
 */

/** An attribute in a request. */
export type Attribute = { S: string } | { N: string } | { B: Uint8Array }

export type Item = Record<string, Attribute>

/** An attribute in an answer. It may be of a type that the store never writes. */
export interface FoundAttribute {
  readonly S?: string | undefined
  readonly N?: string | undefined
  readonly B?: Uint8Array | undefined
}

export type FoundItem = Readonly<Record<string, FoundAttribute>>

export interface CallOptions {
  abortSignal?: AbortSignal
}

interface Expressions {
  ExpressionAttributeNames?: Record<string, string>
  ExpressionAttributeValues?: Item
}

interface Conditional extends Expressions {
  TableName: string
  ConditionExpression?: string
  ReturnValuesOnConditionCheckFailure?: 'ALL_OLD'
}

export interface PutInput extends Conditional {
  Item: Item
}

export interface DeleteInput extends Conditional {
  Key: Item
}

export interface GetInput extends Expressions {
  TableName: string
  Key: Item
  ConsistentRead: boolean
  ProjectionExpression?: string
}

export interface BatchGetInput {
  RequestItems: Record<
    string,
    {
      Keys: Item[]
      ConsistentRead: boolean
      ProjectionExpression: string
      ExpressionAttributeNames: Record<string, string>
    }
  >
}

export interface BatchGetOutput {
  readonly Responses?: Readonly<Record<string, FoundItem[]>> | undefined
  readonly UnprocessedKeys?: Readonly<Record<string, { Keys?: unknown }>> | undefined
}

export interface QueryInput extends Expressions {
  TableName: string
  IndexName?: string
  KeyConditionExpression: string
  ConsistentRead?: boolean
  ScanIndexForward?: boolean
  Limit?: number
  ExclusiveStartKey?: Item
}

export interface QueryOutput {
  readonly Items?: FoundItem[] | undefined
  readonly LastEvaluatedKey?: FoundItem | undefined
}

/** An answer of the service as a middleware gets it, before the SDK has parsed it. */
export interface RawAnswer {
  readonly response?: unknown
}

export type Handler = (request: never) => Promise<RawAnswer>

export type Middleware = (next: Handler) => Handler

export interface DynamodbClient {
  getItem(input: GetInput, options?: CallOptions): Promise<{ Item?: FoundItem | undefined }>
  putItem(input: PutInput, options?: CallOptions): Promise<unknown>
  deleteItem(input: DeleteInput, options?: CallOptions): Promise<unknown>
  batchGetItem(input: BatchGetInput, options?: CallOptions): Promise<BatchGetOutput>
  query(input: QueryInput, options?: CallOptions): Promise<QueryOutput>
  /** The `requestHandler` owns the connections. */
  readonly config?: { readonly requestHandler?: unknown }
  /**
   * A middleware wraps a whole call, or each attempt of the SDK at it. The store uses both to find
   * out whether an earlier attempt may have taken effect, and reads the time from the answers.
   */
  readonly middlewareStack: {
    add(middleware: Middleware, options: { step: 'initialize'; priority: 'high' }): void
    add(middleware: Middleware, options: { step: 'deserialize'; priority: 'low' }): void
  }
}

/** A property of a value of the SDK whose type is not described here. */
export function fieldOf(value: unknown, name: string): unknown {
  if (typeof value !== 'object' || value === null) return undefined
  return Reflect.get(value, name) as unknown
}
