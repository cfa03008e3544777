import type {
  Argument,
  Connection,
  Driver,
  NodeRedisClient,
  NodeRedisCluster,
  NodeRedisConnection,
} from './client.ts'

/**
 * Strings as bytes: `returnBuffers` is the word of version 4, and the type mapping that of its
 * successors, by the first character of the types in the protocol: `$` and `=`.
 */
const AS_BYTES = {
  returnBuffers: true,
  typeMapping: { [0x24]: Buffer, [0x3d]: Buffer },
}

export function nodeRedisDriver(client: NodeRedisClient): Driver {
  const send = (args: readonly Argument[]) => client.sendCommand([...args], AS_BYTES)
  return {
    isCluster: false,
    send,
    askMasters: async (args) => [await send(args)],
    connect: () => connect(client),
  }
}

export function nodeRedisClusterDriver(cluster: NodeRedisCluster): Driver {
  return {
    isCluster: true,
    send: (args, key) => cluster.sendCommand(key, false, [...args], AS_BYTES),
    askMasters: (args) =>
      Promise.all(
        cluster.masters.map(async (node) => {
          const client = (await cluster.nodeClient(node as never)) as NodeRedisConnection
          return client.sendCommand([...args], AS_BYTES)
        }),
      ),
  }
}

/** Never reconnects: a cut ends it, with all that is under way, and nothing waits for it. */
async function connect(client: NodeRedisClient): Promise<Connection> {
  const connection = client.duplicate({
    disableOfflineQueue: true,
    socket: { ...client.options?.socket, reconnectStrategy: false },
  })
  // Without a listener it would end the process. Whoever calls while it is down gets the error.
  connection.on('error', () => undefined)
  const close = () => {
    if (connection.destroy === undefined) void connection.disconnect?.()
    else connection.destroy()
  }
  try {
    await connection.connect()
  } catch (error) {
    close()
    throw error
  }
  return { send: (args) => connection.sendCommand([...args], AS_BYTES), close }
}
