/**
 * Peers are loaded by name and described by the few methods that are used: the repository is
 * type-checked without them, and they are installed only for the benchmark.
 */
export async function loadPeer<Module>(name: string): Promise<Module> {
  return (await import(name)) as Module
}

/** The methods that all versions of node-redis have. */
export interface NodeRedis {
  connect(): Promise<unknown>
  flushDb(): Promise<unknown>
  quit(): Promise<unknown>
  on(event: 'error', listener: (error: Error) => void): unknown
}

/** A connected node-redis client, in the version that the package requires. */
export async function openNodeRedis(
  packageName: 'redis' | '@redis/client',
  url: string,
): Promise<NodeRedis> {
  const { createClient } = await loadPeer<{
    createClient: (options: { url: string }) => NodeRedis
  }>(packageName)
  const client = createClient({ url })
  // Without a listener a lost connection would end the process without a message.
  client.on('error', (error) => console.error(`Redis: ${error.message}`))
  await client.connect()
  return client
}
