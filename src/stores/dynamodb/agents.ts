import { warnOnce } from '../../core/warn.ts'
import type { DynamodbClient, Handler } from './client.ts'
import { fieldOf } from './field-of.ts'

/** The part of an `Agent` of `node:http` that is used. */
export interface Agent {
  readonly freeSockets: Readonly<Record<string, readonly { destroy(): unknown }[] | undefined>>
  readonly maxSockets?: unknown
}

/** Those of the SDK's own handler for Node; another one may have none, or not show them. */
export function agentsOf({ config }: DynamodbClient): Agent[] {
  return ['httpAgent', 'httpsAgent'].flatMap((name) => agentOf(config?.requestHandler, name))
}

/**
 * Warns where the client has fewer connections than the store has calls under way at once. The
 * limit of one tenant's calls is a share of the store's, so with fewer connections one tenant whose
 * calls have no answer holds all of them.
 *
 * The handler makes its agents with its first request, and which of them it uses is told by the
 * request: so the first answer is waited for.
 */
export function warnOfFewSockets(client: DynamodbClient, needed: number): void {
  const { middlewareStack, config } = client
  if (looked.has(middlewareStack)) return
  looked.add(middlewareStack)
  let isOpen = true
  const look =
    (next: Handler): Handler =>
    async (request) => {
      const answer = await next(request)
      if (isOpen) {
        isOpen = false
        const name = isPlain(request) ? 'httpAgent' : 'httpsAgent'
        for (const agent of agentOf(config?.requestHandler, name)) judge(agent, name, needed)
      }
      return answer
    }
  middlewareStack.add(look, { step: 'deserialize', priority: 'low' })
}

/** One look at a client, however many stores share it. */
const looked = new WeakSet<object>()

function judge({ maxSockets }: Agent, name: string, needed: number): void {
  if (typeof maxSockets !== 'number' || maxSockets >= needed) return
  warnOnce(
    `dynamodbStore: the client opens at most ${maxSockets} connections, and the store has up to ` +
      `${needed} calls under way at once. One tenant whose calls have no answer can hold all ` +
      'connections, and every other tenant then waits: give the client ' +
      `requestHandler: { ${name}: { maxSockets: ${needed} } }, or more if it has other uses`,
    'dynamodb: maxSockets',
  )
}

function isPlain(request: unknown): boolean {
  return fieldOf(fieldOf(request, 'request'), 'protocol') === 'http:'
}

function agentOf(handler: unknown, name: string): Agent[] {
  const ask = fieldOf(handler, 'httpHandlerConfigs')
  if (typeof ask !== 'function') return []
  const agent = fieldOf(Reflect.apply(ask, handler, []), name)
  return isAgent(agent) ? [agent] : []
}

function isAgent(agent: unknown): agent is Agent {
  const free = fieldOf(agent, 'freeSockets')
  return typeof free === 'object' && free !== null
}
