import { redisConnections } from '../../kit/redis-connections.ts'
import { SilenceWatch } from '../../kit/shared-connection.ts'
import type {
  Connection,
  Driver,
  NodeRedisClient,
  NodeRedisCluster,
  NodeRedisConnection,
} from '../client.ts'
import { markRefusals } from '../refusals.ts'
import { untilAborted } from './until-aborted.ts'

/**
 * Returns strings as `Buffer`s: `returnBuffers` in version 4, `typeMapping` in later versions. The
 * keys of the mapping are the type characters of the protocol: `$` and `=`.
 */
const AS_BYTES = {
  returnBuffers: true,
  typeMapping: { [0x24]: Buffer, [0x3d]: Buffer },
}

/** Passes the signal on, so that a command that is not written yet leaves the client's queue. */
function optionsFor(signal: AbortSignal | undefined): object {
  return signal === undefined ? AS_BYTES : { ...AS_BYTES, abortSignal: signal }
}

export function nodeRedisDriver(client: NodeRedisClient): Driver {
  const connections = redisConnections(client)
  const watch = new SilenceWatch(connections)
  const send: Driver['send'] = (args, _, signal) =>
    markRefusals(connections, () =>
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
  // The client does not show which connection has a key, so its `socketTimeout` must end a silent
  // one. The client never repeats a command that it has written, so there is nothing to compare.
  const connections = () => []
  const watch = new SilenceWatch(connections)
  return {
    isCluster: true,
    send: (args, key, signal) =>
      markRefusals(connections, () =>
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

/**
 * Opens a connection that never reconnects. When it is lost, its unanswered commands fail, and no
 * command is queued for another one.
 */
async function connect(client: NodeRedisClient, signal: AbortSignal): Promise<Connection> {
  const connection = client.duplicate({
    disableOfflineQueue: true,
    pingInterval: 0,
    // WAIT may take longer than the client allows for a command. Each call has its own limit.
    socket: { ...client.options?.socket, reconnectStrategy: false, socketTimeout: undefined },
  })
  // Without a listener, the event would end the process. The calls on the connection fail, too.
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
