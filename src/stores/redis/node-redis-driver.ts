import { redisConnections } from '../../core/redis-connections.ts'
import { SilenceWatch } from '../../core/shared-connection.ts'
import type {
  Connection,
  Driver,
  NodeRedisClient,
  NodeRedisCluster,
  NodeRedisConnection,
} from './client.ts'
import { notingRefusals } from './refusals.ts'
import { untilAborted } from './until-aborted.ts'

/**
 * Strings as bytes: `returnBuffers` is the word of version 4, and the type mapping that of its
 * successors, by the first character of the types in the protocol: `$` and `=`.
 */
const AS_BYTES = {
  returnBuffers: true,
  typeMapping: { [0x24]: Buffer, [0x3d]: Buffer },
}

/** With the signal, so that a command that was not written yet leaves the client's queue. */
function optionsFor(signal: AbortSignal | undefined): object {
  return signal === undefined ? AS_BYTES : { ...AS_BYTES, abortSignal: signal }
}

export function nodeRedisDriver(client: NodeRedisClient): Driver {
  const connections = redisConnections(client)
  const watch = new SilenceWatch(connections)
  const send: Driver['send'] = (args, _, signal) =>
    notingRefusals(connections, () =>
      watch.ask((own) => client.sendCommand([...args], optionsFor(own())), signal),
    )
  return {
    isCluster: false,
    send,
    askMasters: async (args, signal) => [await send(args, '', signal)],
    connect: (signal) => connect(client, signal),
  }
}

export function nodeRedisClusterDriver(cluster: NodeRedisCluster): Driver {
  // Which of its connections has a key is not told: their `socketTimeout` must end them. It never
  // sends a command again that it has written, so that no connection needs to be compared.
  const connections = () => []
  const watch = new SilenceWatch(connections)
  return {
    isCluster: true,
    send: (args, key, signal) =>
      notingRefusals(connections, () =>
        watch.ask((own) => cluster.sendCommand(key, false, [...args], optionsFor(own())), signal),
      ),
    askMasters: (args, signal) =>
      watch.ask((own) => {
        const options = optionsFor(own())
        return Promise.all(
          cluster.masters.map(async (node) => {
            const client = (await cluster.nodeClient(node as never)) as NodeRedisConnection
            return client.sendCommand([...args], options)
          }),
        )
      }, signal),
  }
}

/** Never reconnects: a cut ends it, with all that is under way, and nothing waits for it. */
async function connect(client: NodeRedisClient, signal: AbortSignal): Promise<Connection> {
  const connection = client.duplicate({
    disableOfflineQueue: true,
    pingInterval: 0,
    // WAIT may take longer than the client expects of its commands; calls limit it themselves.
    socket: { ...client.options?.socket, reconnectStrategy: false, socketTimeout: undefined },
  })
  // Without a listener it would end the process. Whoever calls while it is down gets the error.
  connection.on('error', () => undefined)
  const close = () => {
    if (connection.destroy === undefined) void connection.disconnect?.()
    else connection.destroy()
  }
  signal.addEventListener('abort', close, { once: true })
  try {
    await untilAborted(connection.connect(), signal)
  } catch (error) {
    close()
    throw error
  }
  return { send: (args) => connection.sendCommand([...args], AS_BYTES), close }
}
