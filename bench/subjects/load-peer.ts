/**
 * Peers are loaded by name and described by the few methods that are used: the repository is
 * checked without them, and they are installed only where the benchmark runs.
 */
export async function loadPeer<Module>(name: string): Promise<Module> {
  return (await import(name)) as Module
}

/** What node-redis has in all its versions. */
export interface NodeRedis {
  connect(): Promise<unknown>
  flushDb(): Promise<unknown>
  quit(): Promise<unknown>
  on(event: 'error', listener: (error: Error) => void): unknown
}

/** A connected client of node-redis, in the version that the package is for. */
export async function openNodeRedis(
  packageName: 'redis' | '@redis/client',
  url: string,
): Promise<NodeRedis> {
  const { createClient } = await loadPeer<{
    createClient: (options: { url: string }) => NodeRedis
  }>(packageName)
  const client = createClient({ url })
  // Without a listener a lost connection would end the process without a word.
  client.on('error', (error) => console.error(`Redis: ${error.message}`))
  await client.connect()
  return client
}
