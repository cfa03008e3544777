import { expectTypeOf, it } from 'vitest'
import { defineOperation, type EffectCall } from '../../../src/durable/index.ts'

it('infers the request and the result of each effect from its send', () => {
  const pay = defineOperation({
    name: 'pay',
    effects: {
      charge: {
        send: ({ request }: EffectCall<{ amount: number }>) => ({ id: `ch_${request.amount}` }),
      },
      // Only `send` declares types; the others are inferred from it.
      refund: {
        send: async ({ request }: EffectCall<number>) => ({ amount: request }),
        reconcile: async ({ request, downstreamKey }) => {
          expectTypeOf(downstreamKey).toEqualTypeOf<string>()
          return request === 0 ? { kind: 'not_found' } : { kind: 'pending' }
        },
        providerId: ({ amount }) => String(amount),
      },
      notify: { send: async ({ request }: { request: string }) => request.length },
    },
    async run(op, input: { amount: number }) {
      expectTypeOf(await op.external('charge', { amount: input.amount })).toEqualTypeOf<{
        id: string
      }>()
      expectTypeOf(await op.external('notify', 'x')).toEqualTypeOf<number>()
      expectTypeOf(await op.external('refund', 5)).toEqualTypeOf<{ amount: number }>()
      // @ts-expect-error: the request of another effect
      const wrong = () => op.external('charge', 'x')
      // @ts-expect-error: not declared
      const unknown = () => op.external('return', 'x')
      void [wrong, unknown]
      const made = await op.transaction('one', async (tx: { exec(sql: string): void }) => {
        tx.exec('SELECT 1')
        return { id: 1 }
      })
      expectTypeOf(made).toEqualTypeOf<{ id: number }>()
      return op.finish('two', () => ({ status: 201, body: made }))
    },
  })
  expectTypeOf(pay.run).parameter(1).toEqualTypeOf<{ amount: number }>()
})
