import { InvalidOptionsError } from '../../../core/errors.ts'
import { describe } from '../../../core/options.ts'
import type {
  Driver,
  IoRedisClient,
  IoRedisCluster,
  NodeRedisClient,
  NodeRedisCluster,
} from '../client.ts'
import { ioRedisClusterDriver, ioRedisDriver } from './ioredis.ts'
import { nodeRedisClusterDriver, nodeRedisDriver } from './node-redis.ts'

export function driverOf(client: unknown): Driver {
  if (has(client, 'callBuffer', 'duplicate')) {
    return has(client, 'nodes')
      ? ioRedisClusterDriver(client as IoRedisCluster)
      : ioRedisDriver(client as IoRedisClient)
  }
  if (has(client, 'sendCommand', 'nodeClient')) {
    return nodeRedisClusterDriver(client as NodeRedisCluster)
  }
  // A pool of node-redis has no `duplicate`. A sentinel client has another `sendCommand`.
  if (has(client, 'sendCommand', 'duplicate') && !has(client, 'getMasterNode')) {
    return nodeRedisDriver(client as NodeRedisClient)
  }
  throw new InvalidOptionsError(
    'redisStore: client must be a Redis or a Redis.Cluster of "ioredis", or the result of ' +
      `createClient() or createCluster() of "redis", got ${describe(client)}`,
  )
}

function has(client: unknown, ...methods: readonly string[]): boolean {
  if (typeof client !== 'object' || client === null) return false
  return methods.every((name) => typeof (client as Record<string, unknown>)[name] === 'function')
}
