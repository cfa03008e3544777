/**
 * The part of the AWS SDK's `DynamoDB` client that is used here. Described, not imported: the
 * package depends on no SDK, and whatever behaves like it will do.
 */

/** An attribute as it is sent. */
export type Attribute = { S: string } | { N: string } | { B: Uint8Array }

export type Item = Record<string, Attribute>

/** An attribute as it comes back: of one of the types above, or of one that is not ours. */
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

/** What an answer of the service looks like to a middleware, before the SDK has read it. */
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
  /** Its `requestHandler` has the connections. */
  readonly config?: { readonly requestHandler?: unknown }
  /**
   * A middleware stands around a whole call, or around each attempt at it: the store learns from
   * both whether an earlier attempt may have been carried out.
   */
  readonly middlewareStack: {
    add(middleware: Middleware, options: { step: 'initialize'; priority: 'high' }): void
    add(middleware: Middleware, options: { step: 'deserialize'; priority: 'low' }): void
  }
}
