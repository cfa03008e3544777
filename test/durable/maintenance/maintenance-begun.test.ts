import { expect, it } from 'vitest'
import { createWorker, defineOperation, operationPolicy } from '../../../src/durable/index.ts'
import { createMaintenance } from '../../../src/durable/maintenance/maintenance.ts'
import { operatorFixture } from '../operator/operator-fixture.ts'

// A worker has charged and then failed. The client retries, so that the operation is accepted
// again, and then no worker runs for a day. An operation that has begun must not end as "timed
// out".
it('never abandons an operation that has been begun', async () => {
  const { engine, clock } = operatorFixture()
  let charged = 0
  const pay = defineOperation({
    name: 'p',
    effects: { charge: { send: async () => ({ n: ++charged }) } },
    async run(op) {
      await op.external('charge', undefined)
      throw new Error('book failed')
    },
  })
  const scope = { tenant: 'acme', operation: 'p' }
  const policy = operationPolicy(engine)
  const accept = () =>
    engine.run({ scope, key: 'k', fingerprint: 'f', policy }, async (context) => {
      await pay.accept(context, undefined)
      return new Uint8Array(0)
    })
  await accept()
  await createWorker({ engine, operations: [pay] }).runOnce()
  await accept()
  await clock.advanceAsync(2 * 86_400_000)
  await createMaintenance({ engine }).runOnce()
  const record = (await engine.read({ scope, key: 'k' }))!
  expect([charged, record.state, record.recoveryPoint]).toEqual([1, 'pending', 'charge'])
})
