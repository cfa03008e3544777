/** Schemas of widely used packages. */
import { Ajv } from 'ajv'
import * as v from 'valibot'
import { describe, expect, expectTypeOf, it } from 'vitest'
import { z } from 'zod'
import { ajvSchema, defineOperation, type Schema } from '../../../src/durable/index.ts'
import { checkSchema } from '../../../src/durable/operations/schema.ts'
import { durableFixture } from './durable-fixture.ts'

interface Payment {
  amount: number
  card: { number: string }
}

const shape = {
  type: 'object',
  required: ['amount', 'card'],
  properties: {
    amount: { type: 'number', minimum: 1 },
    card: {
      type: 'object',
      required: ['number'],
      properties: { number: { type: 'string' } },
    },
  },
} as const

const SCHEMAS: readonly [string, Schema<Payment>][] = [
  ['zod', z.object({ amount: z.number().min(1), card: z.object({ number: z.string() }) })],
  [
    'valibot',
    v.object({
      amount: v.pipe(v.number(), v.minValue(1)),
      card: v.object({ number: v.string() }),
    }),
  ],
  ['ajv', ajvSchema(new Ajv().compile<Payment>(shape))],
]

describe.each(SCHEMAS)('a schema of %s', (_name, schema) => {
  it('checks the input of an operation, and names its issues', async () => {
    const { run } = durableFixture()
    const pay = defineOperation({
      name: 'pay',
      input: schema,
      run: (_op, { amount }) => ({ status: 200, body: { amount } }),
    })
    const good = { amount: 5, card: { number: '4242' } }
    expect(await run(pay, good)).toMatchObject({ kind: 'ran', body: { amount: 5 } })
    const bad = { amount: 5, card: { number: 4242 } } as unknown as Payment
    await expect(run(pay, bad, 'other')).rejects.toMatchObject({
      code: 'INVALID_REQUEST',
      status: 400,
      message: expect.stringMatching(/the input of operation "pay".*card\.number/) as string,
    })
  })
})

it('uses the output value of the schema', async () => {
  const { run } = durableFixture()
  const pay = defineOperation({
    name: 'pay',
    input: z.object({ amount: z.coerce.number(), currency: z.string().default('EUR') }),
    run: (_op, input) => {
      expectTypeOf(input).toEqualTypeOf<{ amount: number; currency: string }>()
      return { status: 200, body: input }
    },
  })
  const given = { amount: '5' } as never
  expect(await run(pay, given)).toMatchObject({ body: { amount: 5, currency: 'EUR' } })
})

it('names at most five issues', async () => {
  const fields = Object.fromEntries(Array.from({ length: 9 }, (_, n) => [`f${n}`, z.string()]))
  const failed = await checkSchema('it', z.object(fields), {}).catch((error: unknown) => error)
  expect((failed as Error).message.match(/f\d/g)).toEqual(['f0', 'f1', 'f2', 'f3', 'f4'])
})
