import type { Connection, Driver, IoRedisClient, IoRedisCluster } from './client.ts'

export function ioRedisDriver(client: IoRedisClient): Driver {
  return {
    isCluster: false,
    send: ([command, ...args]) => client.callBuffer(command as string, ...args),
    askMasters: async ([command, ...args]) => [await client.callBuffer(command!, ...args)],
    connect: () => connect(client),
  }
}

export function ioRedisClusterDriver(cluster: IoRedisCluster): Driver {
  return {
    isCluster: true,
    // It finds the keys of a script by itself.
    send: ([command, ...args]) => cluster.callBuffer(command as string, ...args),
    askMasters: async ([command, ...args]) => {
      // The nodes are known once a first command has found its way.
      await cluster.callBuffer('TIME')
      return Promise.all(cluster.nodes('master').map((node) => node.callBuffer(command!, ...args)))
    },
  }
}

/**
 * A command that is sent again on a new connection would be answered for that connection. So it
 * never reconnects: a cut ends it, with all that is under way, and nothing waits for a connection.
 */
async function connect(client: IoRedisClient): Promise<Connection> {
  const connection = client.duplicate({
    lazyConnect: true,
    enableOfflineQueue: false,
    enableAutoPipelining: false,
    retryStrategy: () => null,
  })
  // Without a listener it would print. Whoever calls while it is down gets the error.
  connection.on('error', () => undefined)
  try {
    await connection.connect()
  } catch (error) {
    connection.disconnect()
    throw error
  }
  return {
    send: ([command, ...args]) => connection.callBuffer(command as string, ...args),
    close: () => connection.disconnect(),
  }
}
