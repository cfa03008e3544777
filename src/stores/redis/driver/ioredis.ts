import { redisConnections } from '../../kit/redis-connections.ts'
import { SilenceWatch } from '../../kit/shared-connection.ts'
import type { Connection, Driver, IoRedisClient, IoRedisCluster } from '../client.ts'
import { markRefusals } from '../refusals.ts'
import { untilAborted } from './until-aborted.ts'

export function ioRedisDriver(client: IoRedisClient): Driver {
  const connections = redisConnections(client)
  const watch = new SilenceWatch(connections)
  const send: Driver['send'] = ([command, ...args], _, signal) =>
    markRefusals(connections, () =>
      watch.ask(() => client.callBuffer(command as string, ...args), signal),
    )
  return {
    isCluster: false,
    send,
    askMasters: async (args, signal) => [await send(args, '', signal)],
    connect: (signal) => connect(client, signal),
  }
}

export function ioRedisClusterDriver(cluster: IoRedisCluster): Driver {
  const connections = redisConnections(cluster)
  const watch = new SilenceWatch(connections)
  return {
    isCluster: true,
    // The client finds the keys of a script itself.
    send: ([command, ...args], _, signal) =>
      markRefusals(connections, () =>
        watch.ask(() => cluster.callBuffer(command as string, ...args), signal),
      ),
    askMasters: async ([command, ...args], signal) => {
      // The client knows its nodes only after the first command.
      await watch.ask(() => cluster.callBuffer('TIME'), signal)
      const ask = () =>
        Promise.all(cluster.nodes('master').map((node) => node.callBuffer(command!, ...args)))
      return watch.ask(ask, signal)
    },
  }
}

/**
 * Opens a connection that never reconnects: a WAIT that is sent again on a new connection would
 * answer for that connection. When the connection is lost, its unanswered commands fail, and no
 * command is queued for another one.
 */
async function connect(client: IoRedisClient, signal: AbortSignal): Promise<Connection> {
  const connection = client.duplicate({
    lazyConnect: true,
    enableOfflineQueue: false,
    enableAutoPipelining: false,
    retryStrategy: () => null,
    // WAIT may take longer than the client allows for a command. Each call has its own limit.
    socketTimeout: undefined,
    commandTimeout: undefined,
  })
  // Without a listener, ioredis prints the error. The calls on the connection fail with it, too.
  connection.on('error', () => undefined)
  const close = () => {
    connection.disconnect()
    // `disconnect` waits for the other end, which may be silent.
    connection.stream?.destroy()
  }
  signal.addEventListener('abort', close, { once: true })
  try {
    await untilAborted(connection.connect(), signal)
  } catch (error) {
    close()
    throw error
  }
  return {
    send: ([command, ...args]) => connection.callBuffer(command as string, ...args),
    close,
  }
}
