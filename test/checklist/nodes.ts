/** Two nodes of the shop, each a process, on one database. */
import { startWorker } from '../process/worker-process.ts'

export interface Nodes {
  /** Pays at one of the nodes, always under the same key. */
  readonly pay: (node: number) => Promise<{ readonly status: number; readonly body: string }>
  /** The number of handler calls on both nodes. */
  readonly entered: () => number
}

export async function startNodes(databaseUrl: string): Promise<Nodes> {
  const nodes = [1, 2].map(() => startWorker('../checklist/shop-process.ts', [databaseUrl]))
  await Promise.all(nodes.map((node) => node.written(1)))
  const urls = nodes.map(({ lines }) => {
    const { port } = JSON.parse(lines[0]!) as { port: number }
    return `http://127.0.0.1:${port}/payments`
  })
  const headers = { 'Idempotency-Key': 'k' }
  return {
    pay: async (node) => {
      const reply = await fetch(urls[node]!, { method: 'POST', headers })
      return { status: reply.status, body: await reply.text() }
    },
    entered: () =>
      nodes.flatMap(({ lines }) => lines).filter((line) => line === '"entered"').length,
  }
}
