/** The OpenAPI document of the API, for generated clients and for readers. */
import { PROBLEMS } from 'oncekey'
import { describeIdempotency } from 'oncekey/openapi'
import { z } from 'zod'
import { orderInput } from '../orders/order.ts'
import { paymentInput } from '../payments/payment.ts'
import { refundBody } from '../refunds/refund.ts'
import type { Settings } from '../settings.ts'
import { transferInput } from '../transfers/transfer.ts'
import { CURRENCIES } from './input.ts'
import { REQUEST_SIGNATURE } from './signed-time.ts'

/** The rules for keys: long enough that no client takes a counter, and no personal data. */
export const KEY_RULES = { keyLengthMin: 16, refusePersonalKeys: true } as const

type Json = Readonly<Record<string, unknown>>

/** Adds to our own document what the guard does, from the same options. */
export function openApiDocument({
  maxRequestAgeMs,
  refuseLateMs,
}: Pick<Settings, 'maxRequestAgeMs' | 'refuseLateMs'>): object {
  const isSigned = maxRequestAgeMs > 0
  return describeIdempotency(ownDocument(isSigned), {
    keyLengthMin: KEY_RULES.keyLengthMin,
    limited: true,
    status: { operationIds: ['showOperation'] },
    ...(refuseLateMs > 0 && { afterExpiry: { refuseForMs: refuseLateMs } }),
    ...(isSigned && { maxRequestAgeMs }),
  })
}

function ownDocument(isSigned: boolean): object {
  const posts = isSigned ? { parameters: [SIGNATURE] } : {}
  const post = (operationId: string, body: z.ZodType, rest: Json) => ({
    operationId,
    ...posts,
    requestBody: { required: true, content: json(z.toJSONSchema(body)) },
    ...rest,
  })
  return {
    openapi: '3.1.0',
    info: {
      title: 'Payments',
      version: '1.0.0',
      description: 'Payments, refunds, orders and transfers that are safe to retry.',
    },
    security: [{ token: [] }],
    paths: {
      '/payments': { post: post('createPayment', paymentInput, PAYMENT_POST) },
      '/payments/{id}': { parameters: [ID], get: show('Payment') },
      '/payments/{id}/refunds': {
        parameters: [ID],
        post: post('createRefund', refundBody, REFUND_POST),
      },
      '/refunds/{id}': { parameters: [ID], get: show('Refund') },
      '/orders': { post: post('createOrder', orderInput, ORDER_POST) },
      '/orders/{id}': { parameters: [ID], get: show('Order') },
      '/transfers': { post: post('createTransfer', transferInput, TRANSFER_POST) },
      '/transfers/{id}': { parameters: [ID], get: show('Transfer') },
      '/operations/{id}': { parameters: [ID], get: SHOW_OPERATION },
    },
    components: {
      securitySchemes: { token: { type: 'http', scheme: 'bearer' } },
      schemas: SCHEMAS,
    },
  }
}

const json = (schema: Json) => ({ 'application/json': { schema } })
const ref = (name: string) => ({ $ref: `#/components/schemas/${name}` })

const ID = { name: 'id', in: 'path', required: true, schema: { type: 'string', format: 'uuid' } }

const SIGNATURE = {
  name: REQUEST_SIGNATURE,
  in: 'header',
  required: true,
  description:
    '`t=<unix seconds>,v1=<hex>`: the time of the first attempt, and the HMAC-SHA256 with your ' +
    'signing secret of `<t>.<method> <path>\\n<key>\\n<body>`. Retries send the same value.',
  schema: { type: 'string', pattern: '^t=\\d{1,12},v1=[0-9a-f]{64}$' },
}

const problem = (description: string) => ({
  description,
  content: { 'application/problem+json': { schema: ref('Problem') } },
})

/** Every other answer of a route. The guard adds its own statuses beside it. */
const OTHERS = { default: problem('The request was not carried out; branch on `code`.') }

const created = (description: string, schema: Json) => ({
  description,
  headers: { Location: { description: 'The URL of it.', schema: { type: 'string' } } },
  content: json(schema),
})

/** Of an object that we send: every field is always there. */
function object(properties: Readonly<Record<string, Json>>): Json {
  return { type: 'object', required: Object.keys(properties), properties }
}

const text = { type: 'string' }
const uuid = { type: 'string', format: 'uuid' }
const cents = { type: 'integer', minimum: 0 }
const time = { type: 'string', format: 'date-time' }
const textOrNull = { type: ['string', 'null'] }
const oneOf = (...values: readonly string[]) => ({ type: 'string', enum: values })
const currency = oneOf(...CURRENCIES)

const payment = { paymentId: uuid, customerId: text, amountCents: cents, currency }
const refund = { refundId: uuid, paymentId: uuid, amountCents: cents }
const order = { orderId: uuid, sku: text, quantity: cents, totalCents: cents }
const transfer = { transferId: uuid, amountCents: cents, toAccount: text }

const PAYMENT_POST = {
  summary: 'Charges a customer.',
  responses: {
    201: created(
      'The payment was made.',
      object({ ...payment, status: oneOf('succeeded'), chargeId: text }),
    ),
    402: problem('The payment was declined (`payment_declined`).'),
    ...OTHERS,
  },
}

const REFUND_POST = {
  summary: 'Returns a part of a payment, or all of it.',
  responses: {
    201: created(
      'The money was returned.',
      object({ ...refund, status: oneOf('succeeded'), providerRefundId: text }),
    ),
    402: problem('The refund was declined (`refund_declined`).'),
    404: problem('You have no payment with this id (`payment_not_found`).'),
    ...OTHERS,
  },
}

const ORDER_POST = {
  summary: 'Orders goods, and pays for them.',
  responses: {
    201: created(
      'The goods were ordered and paid.',
      object({ ...order, status: oneOf('confirmed'), captureId: text }),
    ),
    402: problem('The payment was declined (`payment_declined`), and nothing was ordered.'),
    404: problem('The shop has no such goods (`product_not_found`).'),
    ...OTHERS,
  },
}

const TRANSFER_POST = {
  summary: 'Pays out to an account, in the background.',
  responses: {
    201: created(
      'A retry: the transfer was paid.',
      object({ ...transfer, status: oneOf('paid'), payoutId: text }),
    ),
    202: {
      description: 'The transfer was accepted. Ask at the `Location` for its reply.',
      content: json(ref('Accepted')),
    },
    402: problem('The transfer was declined (`transfer_declined`).'),
    ...OTHERS,
  },
}

const SHOW_OPERATION = {
  operationId: 'showOperation',
  summary: 'Shows the reply of a request, when there is one: any recorded reply of this API.',
  responses: {
    201: { description: 'The reply of the request.', content: json({ type: 'object' }) },
    402: problem('The reply of the request: it was declined.'),
    ...OTHERS,
  },
}

function show(name: string) {
  return {
    operationId: `show${name}`,
    summary: 'Shows the current state.',
    responses: {
      200: { description: 'The current state.', content: json(ref(name)) },
      404: problem('You have none with this id.'),
      ...OTHERS,
    },
  }
}

const SCHEMAS = {
  Accepted: object({
    type: text,
    title: text,
    status: { type: 'integer', const: 202 },
    detail: text,
    code: oneOf(PROBLEMS.accepted.code),
  }),
  Payment: object({
    ...payment,
    status: oneOf('pending', 'succeeded', 'declined', 'partially_refunded', 'refunded'),
    refundedCents: cents,
    chargeId: textOrNull,
    createdAt: time,
  }),
  Refund: object({
    ...refund,
    status: oneOf('pending', 'succeeded', 'declined'),
    providerRefundId: textOrNull,
    createdAt: time,
  }),
  Order: object({
    ...order,
    customerId: text,
    status: oneOf('reserved', 'confirmed', 'declined'),
    captureId: textOrNull,
    createdAt: time,
  }),
  Transfer: object({
    ...transfer,
    currency,
    status: oneOf('pending', 'paid', 'declined'),
    payoutId: textOrNull,
    createdAt: time,
  }),
  Problem: {
    description: 'An error of this API (RFC 9457).',
    type: 'object',
    required: ['type', 'title', 'status', 'detail', 'code'],
    properties: {
      type: text,
      title: text,
      status: { type: 'integer' },
      detail: text,
      code: text,
      errors: {
        description: 'The fields of the request that are not valid.',
        type: 'array',
        items: object({ field: text, detail: text }),
      },
      ...{ paymentId: uuid, refundId: uuid, orderId: uuid, transferId: uuid },
    },
  },
}
