import assert from 'node:assert/strict'
import type { AdapterCase } from './adapter-case.ts'
import { send, TENANT_HEADER } from './case-client.ts'

export const replayCases: readonly AdapterCase[] = [
  {
    name: 'runs the handler once and gives every retry its reply, marked as a replay',
    async run({ subject, store }) {
      let runs = 0
      const { port } = await subject.serve({
        options: { store, tenant: (head) => head.header(TENANT_HEADER) ?? '' },
        routes: [
          {
            path: '/payments',
            handle: async (request) => {
              runs++
              const body = JSON.stringify({ got: await request.json() })
              const headers = { 'content-type': 'application/json', 'x-request': '1' }
              return { status: 201, headers, body }
            },
          },
        ],
      })
      const first = await send({ port, key: 'key-1', json: { amount: 100 } })
      assert.equal(first.status, 201)
      assert.deepEqual(JSON.parse(first.text), { got: { amount: 100 } })
      assert.equal(first.headers['idempotent-replayed'], undefined)
      const retry = await send({ port, key: 'key-1', json: { amount: 100 } })
      assert.equal(retry.status, 201)
      assert.deepEqual(retry.body, first.body)
      assert.equal(retry.headers['content-type'], first.headers['content-type'])
      assert.equal(retry.headers['idempotent-replayed'], 'true')
      assert.equal(runs, 1)
    },
  },
]
