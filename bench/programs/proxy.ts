/** A network between a program and its server, with a delay in each direction. */
import { startTcpProxy } from '../../test/servers/tcp-proxy.ts'
import type { Program } from '../run/contract.ts'

export interface ProxyConfig {
  readonly url: string
  readonly delayMs: number
}

export async function open({ url, delayMs }: ProxyConfig): Promise<Program> {
  const { hostname, port } = new URL(url)
  const proxy = await startTcpProxy({ host: hostname, port: Number(port) })
  proxy.delay(delayMs)
  return { info: { url: proxy.through(url) }, calls: {}, close: () => proxy.close() }
}
