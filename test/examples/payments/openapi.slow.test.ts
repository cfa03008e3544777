/** The OpenAPI document of the reference service, held against its replies. */
import { randomUUID } from 'node:crypto'
import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js'
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest'
import { scratchFolder } from '../../stores/scratch-folder.ts'
import { clientOf, isReplay, PAYMENT, type Client, type Reply } from './client.ts'
import { addressIn, copyPackageTo, spawnService, startService, type Service } from './service.ts'

// Documents can have any shape.
// oxlint-disable-next-line typescript/no-explicit-any
type Json = Record<string, any>

const scratch = scratchFolder()
const folder = scratch.file('package')
let service: Service
let client: Client
let document: Json

beforeAll(async () => {
  copyPackageTo(folder)
  service = spawnService({ folder, dataFolder: scratch.file('data') })
  const address = addressIn(await service.started)
  client = clientOf(address)
  document = await documentAt(address)
}, 60_000)
afterAll(async () => {
  service?.signal('SIGKILL')
  await service?.ended
  scratch.remove()
})

/** Without a token, because generators of clients have none. */
async function documentAt(address: string): Promise<Json> {
  const response = await fetch(`${address}/openapi.json`)
  expect([response.status, response.headers.get('content-type')]).toEqual([
    200,
    expect.stringMatching(/^application\/json/),
  ])
  return (await response.json()) as Json
}

/** Resolves a reference within the document. */
function resolve(doc: Json, value: Json): Json {
  const reference: unknown = value['$ref']
  if (typeof reference !== 'string') return value
  const names = reference.replace(/^#\//, '').split('/')
  const target = names.reduce<Json | undefined>((at, name) => at?.[name] as Json, doc)
  if (target === undefined) throw new Error(`${reference} has no target`)
  return resolve(doc, target)
}

interface Found {
  readonly method: string
  readonly path: string
  readonly operation: Json
  readonly parameters: readonly Json[]
}

function operationsOf(doc: Json): Found[] {
  return Object.entries<Json>(doc['paths']).flatMap(([path, item]) =>
    ['get', 'post'].flatMap((method): Found[] => {
      const operation = item[method] as Json | undefined
      if (operation === undefined) return []
      const given = [...(item['parameters'] ?? []), ...(operation['parameters'] ?? [])] as Json[]
      const parameters = given.map((one) => resolve(doc, one))
      return [{ method, path, operation, parameters }]
    }),
  )
}

/** All schemas of the document as one, so that Ajv resolves their references. */
function validatorOf(doc: Json) {
  const ajv = new Ajv2020({ strict: false, validateFormats: false })
  ajv.addSchema(doc, 'doc')
  const toAbsolute = (schema: Json): Json =>
    JSON.parse(JSON.stringify(schema).replaceAll('"#/', '"doc#/')) as Json
  return (schema: Json): ValidateFunction => {
    expect(ajv.validateSchema(schema)).toBe(true)
    return ajv.compile(toAbsolute(schema))
  }
}

describe('the document', () => {
  it('is a valid description: every reference, parameter, response and schema', () => {
    expect(document['openapi']).toBe('3.1.0')
    const compile = validatorOf(document)
    const found = operationsOf(document)
    const ids = found.map(({ operation }) => operation['operationId'] as string)
    expect(new Set(ids).size).toBe(ids.length)
    for (const { path, operation, parameters } of found) {
      const inPath = parameters.filter((one) => one['in'] === 'path').map((one) => one['name'])
      expect(inPath).toEqual([...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => name))
      for (const { schema } of parameters) compile(schema as Json)
      for (const [status, given] of Object.entries<Json>(operation['responses'])) {
        const { description, content = {} } = resolve(document, given)
        expect([status, typeof description]).toEqual([
          expect.stringMatching(/^[1-5]\d\d$|^default$/),
          'string',
        ])
        for (const { schema } of Object.values<Json>(content)) compile(schema as Json)
      }
    }
  })

  it('describes the guard: key, refusals, limits and the headers of recorded replies', () => {
    for (const path of ['/payments', '/payments/{id}/refunds', '/orders', '/transfers']) {
      const { operation, parameters } = operationsOf(document).find(
        (one) => one.path === path && one.method === 'post',
      )!
      expect(parameters.at(-1)).toMatchObject({
        name: 'Idempotency-Key',
        required: true,
        schema: { minLength: 16, maxLength: 255 },
      })
      const statuses = Object.keys(operation['responses'])
      expect(statuses).toEqual(
        expect.arrayContaining(['201', '400', '402', '409', '410', '413', '422', '429', '503']),
      )
      expect(statuses).not.toContain('412')
      const { headers } = resolve(document, operation['responses']['201'])
      expect(Object.keys(headers)).toEqual(expect.arrayContaining(['Idempotent-Replayed']))
    }
    const { responses } = operationsOf(document).find(
      ({ path }) => path === '/operations/{id}',
    )!.operation
    expect(Object.keys(responses)).toEqual(expect.arrayContaining(['202', '404', '410', '429']))
  })

  it('names only routes that exist', async () => {
    for (const { method, path } of operationsOf(document)) {
      const url = path.replace('{id}', randomUUID())
      const reply =
        method === 'get' ? await client.get(url) : await client.post(url, {}, { key: randomUUID() })
      expect([400, 404]).toContain(reply.status)
      expect([url, reply.body['code']]).not.toEqual([url, 'route_not_found'])
    }
  })

  it('describes the age of requests and their signature if the service requires them', async () => {
    const env = {
      TOKENS: 'token-of-ada=acme:ada',
      SIGNING_SECRETS: 'token-of-ada=the-signing-secret-of-ada',
      MAX_REQUEST_AGE_MS: '3600000',
      REFUSE_LATE_MS: '0',
    }
    const strict = startService({ folder, dataFolder: scratch.file('strict'), env })
    const doc = await documentAt(addressIn(await strict.started))
    const pay = operationsOf(doc).find(
      ({ operation }) => operation['operationId'] === 'createPayment',
    )!
    expect(pay.parameters.map(({ name }) => String(name))).toEqual([
      'Request-Signature',
      'Idempotency-Key',
    ])
    const statuses = Object.keys(pay.operation['responses'])
    expect(statuses).toContain('412')
    expect(statuses).not.toContain('410')
  })
})

describe('replies', () => {
  /** Whether the document allows the reply of this operation. */
  function expectDescribed(operationId: string, { status, headers, body }: Reply): void {
    const { operation } = operationsOf(document).find(
      (one) => one.operation['operationId'] === operationId,
    )!
    const responses = operation['responses'] as Json
    const described = resolve(document, responses[status] ?? responses['default'])
    const mediaType = headers.get('content-type')!.replace(/;.*/, '')
    const { schema } = described['content'][mediaType] as { schema: Json }
    const validate = validatorOf(document)(schema)
    validate(body)
    expect([operationId, status, validate.errors]).toEqual([operationId, status, null])
  }

  const post = async (id: string, path: string, body: unknown, key: string = randomUUID()) => {
    const reply = await client.post(path, body, { key })
    expectDescribed(id, reply)
    return reply
  }

  it('of successes, declines and refusals are as the document says', async () => {
    const key = randomUUID()
    const paid = await post('createPayment', '/payments', PAYMENT, key)
    const path = paid.headers.get('location')!
    const refunded = await post('createRefund', `${path}/refunds`, { amountCents: 1 })
    const order = { customerId: 'c', sku: 'tea', quantity: 1 }
    const ordered = await post('createOrder', '/orders', order)
    expectDescribed('showPayment', await client.get(path))
    expectDescribed('showRefund', await client.get(refunded.headers.get('location')!))
    expectDescribed('showOrder', await client.get(ordered.headers.get('location')!))

    const refusals = [
      await post('createPayment', '/payments', { ...PAYMENT, customerId: 'declined' }),
      await post('createPayment', '/payments', {}),
      await post('createPayment', '/payments', PAYMENT, 'short'),
      await post('createPayment', '/payments', { ...PAYMENT, amountCents: 1 }, key),
      await post('createRefund', `/payments/${randomUUID()}/refunds`, { amountCents: 1 }),
      await post('createRefund', `${path}/refunds`, { amountCents: 999_999 }),
      await post('createOrder', '/orders', { ...order, sku: 'gold' }),
      await client.get(`/payments/${randomUUID()}`),
      await client.get(path, 'unknown'),
    ]
    expectDescribed('showPayment', refusals.at(-1)!)
    const statuses = refusals.map(({ status }) => status)
    expect(statuses).toEqual([402, 400, 400, 422, 404, 409, 404, 404, 401])
  })

  it('of a transfer in the background are as the document says', async () => {
    const transfer = { toAccount: 'acc_1', amountCents: 1, currency: 'USD' }
    const key = randomUUID()
    const accepted = await post('createTransfer', '/transfers', transfer, key)
    expect(accepted.status).toBe(202)
    const done = await vi.waitUntil(
      async () => {
        const asked = await client.get(accepted.headers.get('location')!)
        expectDescribed('showOperation', asked)
        return isReplay(asked) ? asked : undefined
      },
      { timeout: 10_000 },
    )
    expectDescribed('createTransfer', await client.post('/transfers', transfer, { key }))
    expectDescribed('showTransfer', await client.get(done.headers.get('location')!))
    expectDescribed('showOperation', await client.get(`/operations/${randomUUID()}`))
  })
})
