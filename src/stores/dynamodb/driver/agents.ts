import { warnOnce } from '../../../core/warn.ts'
import { fieldOf, type DynamodbClient, type Handler } from '../client.ts'

/** The part of a `node:http` `Agent` that the store uses. */
export interface Agent {
  readonly freeSockets: Readonly<Record<string, readonly { destroy(): unknown }[] | undefined>>
  readonly maxSockets?: unknown
}

/** The agents of the SDK's own handler for Node. Other handlers may have none, or hide them. */
export function agentsOf({ config }: DynamodbClient): Agent[] {
  return ['httpAgent', 'httpsAgent'].flatMap((name) => agentOf(config?.requestHandler, name))
}

/**
 * Warns if the client has fewer connections than the store makes calls at once. The limit for one
 * tenant is a share of the store's calls, so with fewer connections one tenant whose calls get no
 * answer can occupy all of them.
 *
 * Checks at the first answer: the handler creates its agents with its first request, and the
 * request shows which of them it uses.
 */
export function warnOfFewSockets(client: DynamodbClient, needed: number): void {
  const { middlewareStack, config } = client
  if (checkedStacks.has(middlewareStack)) return
  checkedStacks.add(middlewareStack)
  let isChecked = false
  const middleware =
    (next: Handler): Handler =>
    async (request) => {
      const answer = await next(request)
      if (!isChecked) {
        isChecked = true
        const name = isPlain(request) ? 'httpAgent' : 'httpsAgent'
        for (const agent of agentOf(config?.requestHandler, name)) warnIfFew(agent, name, needed)
      }
      return answer
    }
  middlewareStack.add(middleware, { step: 'deserialize', priority: 'low' })
}

/** Each client is checked once, even if several stores share it. */
const checkedStacks = new WeakSet<object>()

function warnIfFew({ maxSockets }: Agent, name: string, needed: number): void {
  if (typeof maxSockets !== 'number' || maxSockets >= needed) return
  warnOnce(
    `dynamodbStore: the client opens at most ${maxSockets} connections, but the store makes up ` +
      `to ${needed} calls at once. One tenant whose calls get no answer can occupy all ` +
      'connections, and every other tenant then waits. Give the client ' +
      `requestHandler: { ${name}: { maxSockets: ${needed} } }, or more if it has other uses`,
    'dynamodb: maxSockets',
  )
}

function isPlain(request: unknown): boolean {
  return fieldOf(fieldOf(request, 'request'), 'protocol') === 'http:'
}

function agentOf(handler: unknown, name: string): Agent[] {
  const configs = fieldOf(handler, 'httpHandlerConfigs')
  if (typeof configs !== 'function') return []
  const agent = fieldOf(Reflect.apply(configs, handler, []), name)
  return isAgent(agent) ? [agent] : []
}

function isAgent(agent: unknown): agent is Agent {
  const free = fieldOf(agent, 'freeSockets')
  return typeof free === 'object' && free !== null
}
