import { redisConnections } from '../../core/redis-connections.ts'
import { SilenceWatch } from '../../core/shared-connection.ts'
import type { Connection, Driver, IoRedisClient, IoRedisCluster } from './client.ts'
import { notingRefusals } from './refusals.ts'
import { untilAborted } from './until-aborted.ts'

export function ioRedisDriver(client: IoRedisClient): Driver {
  const connections = redisConnections(client)
  const watch = new SilenceWatch(connections)
  const send: Driver['send'] = ([command, ...args], _, signal) =>
    notingRefusals(connections, () =>
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
    // It finds the keys of a script by itself.
    send: ([command, ...args], _, signal) =>
      notingRefusals(connections, () =>
        watch.ask(() => cluster.callBuffer(command as string, ...args), signal),
      ),
    askMasters: async ([command, ...args], signal) => {
      // The nodes are known once a first command has found its way.
      await watch.ask(() => cluster.callBuffer('TIME'), signal)
      const ask = () =>
        Promise.all(cluster.nodes('master').map((node) => node.callBuffer(command!, ...args)))
      return watch.ask(ask, signal)
    },
  }
}

/**
 * A command that is sent again on a new connection would be answered for that connection. So it
 * never reconnects: a cut ends it, with all that is under way, and nothing waits for a connection.
 */
async function connect(client: IoRedisClient, signal: AbortSignal): Promise<Connection> {
  const connection = client.duplicate({
    lazyConnect: true,
    enableOfflineQueue: false,
    enableAutoPipelining: false,
    retryStrategy: () => null,
    // WAIT may take longer than the client expects of its commands; calls limit it themselves.
    socketTimeout: undefined,
    commandTimeout: undefined,
  })
  // Without a listener it would print. Whoever calls while it is down gets the error.
  connection.on('error', () => undefined)
  const close = () => {
    connection.disconnect()
    // To disconnect is to wait for the other end, which may be silent.
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
