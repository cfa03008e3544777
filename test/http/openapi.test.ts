import { describe, expect, expectTypeOf, it } from 'vitest'
import { describeIdempotency, type OpenApiOptions } from '../../src/http/openapi.ts'
import { PROBLEMS } from '../../src/protocol/problems.ts'

type Json = Record<string, any>

const ok = { description: 'done' }

const document = (paths: Json, more: Json = {}): Json => ({
  openapi: '3.1.0',
  info: { title: 'Shop', version: '1' },
  paths,
  ...more,
})

const shop = () =>
  document({
    '/payments': {
      get: { operationId: 'list', responses: { 200: ok } },
      post: { operationId: 'pay', tags: ['money'], responses: { 201: ok } },
    },
    '/payments/{id}': {
      parameters: [{ name: 'id', in: 'path', required: true, schema: { type: 'string' } }],
      patch: { operationId: 'change', tags: ['money', 'beta'], responses: { 200: ok } },
      put: { operationId: 'replace', responses: { 200: ok } },
    },
  })

/** Follows a local reference. */
function at(doc: Json, value: Json): Json {
  if (typeof value['$ref'] !== 'string') return value
  const names = value['$ref'].slice(2).split('/')
  const target = names.reduce<Json | undefined>((one, name) => one?.[name] as Json, doc)
  if (target === undefined) throw new Error(`${value['$ref']} refers to nothing`)
  return at(doc, target)
}

/** What every OpenAPI validator asks of the objects that we write. */
function check(doc: Json): void {
  const visit = (value: unknown): void => {
    if (typeof value !== 'object' || value === null) return
    if (typeof (value as Json)['$ref'] === 'string') at(doc, value)
    for (const inner of Object.values(value)) visit(inner)
  }
  visit(doc)
  for (const item of Object.values<Json>(doc['paths'])) {
    for (const name of ['post', 'patch']) {
      const operation = at(doc, item)[name] as Json | undefined
      if (operation === undefined) continue
      const parameters = ((operation['parameters'] ?? []) as Json[]).map((one) => at(doc, one))
      for (const { name, in: place, schema } of parameters) {
        expect([typeof name, typeof place, typeof schema]).toEqual(['string', 'string', 'object'])
      }
      const ids = parameters.map((one) => `${one['in']} ${String(one['name']).toLowerCase()}`)
      expect(new Set(ids).size).toBe(ids.length)
      for (const [status, response] of Object.entries<Json>(operation['responses'])) {
        expect(status).toMatch(/^(?:[1-5]\d\d|[1-5]XX|default)$/)
        expect(typeof at(doc, response)['description']).toBe('string')
      }
    }
  }
}

function written(doc: Json, options?: OpenApiOptions): Json {
  const before = structuredClone(doc)
  const after = describeIdempotency(doc, options)
  expect(doc).toEqual(before)
  expect(describeIdempotency(after, options)).toEqual(after)
  check(after)
  return after
}

const parameterOf = (doc: Json, operation: Json): Json | undefined =>
  ((operation['parameters'] ?? []) as Json[])
    .map((one) => at(doc, one))
    .find((one) => one['in'] === 'header')

describe('describeIdempotency', () => {
  it('adds the key, its refusals and its headers to POST and PATCH', () => {
    const doc = written(shop())
    const { post, get } = doc['paths']['/payments']
    expect(parameterOf(doc, post)).toMatchObject({
      name: 'Idempotency-Key',
      in: 'header',
      required: true,
      schema: { type: 'string', minLength: 1, maxLength: 255 },
    })
    expect(Object.keys(post.responses)).toEqual(['201', '400', '409', '413', '422', '503'])
    expect(Object.keys(post.responses[201].headers)).toEqual([
      'Idempotency-Expires',
      'Idempotent-Replayed',
    ])
    const conflict = at(doc, post.responses[409])
    expect(Object.keys(conflict['headers'])).toEqual(['Retry-After'])
    const media = conflict['content']['application/problem+json'] as Json
    expect(Object.keys(media['examples'])).toEqual([
      PROBLEMS.key_in_progress.code,
      PROBLEMS.outcome_unknown.code,
      PROBLEMS.reply_unreadable.code,
    ])
    expect(at(doc, media['schema'])['properties']['code']['enum']).toContain(
      'idempotency_key_in_progress',
    )
    expect(Object.keys(doc['paths']['/payments/{id}'].patch.responses)).toContain('422')
    for (const untouched of [get, doc['paths']['/payments/{id}'].put]) {
      expect(Object.keys(untouched.responses)).toEqual(['200'])
      expect(untouched).not.toHaveProperty('parameters')
    }
  })

  it('keeps the type of the document, and takes 3.0 as well', () => {
    const doc = { openapi: '3.0.3', paths: { '/': { post: { responses: {} } } } } as const
    expectTypeOf(describeIdempotency(doc)).toEqualTypeOf<typeof doc>()
    check(describeIdempotency<Json>(doc))
  })

  it.each([undefined, '2.0', 3.1])('refuses a document of version %j', (openapi) => {
    expect(() => describeIdempotency({ openapi })).toThrow('version 3.0 or 3.1')
  })

  const filters: readonly [string, OpenApiOptions, string[]][] = [
    ['operationIds', { operations: { operationIds: ['pay'] } }, ['pay']],
    ['tags', { operations: { tags: ['beta'] } }, ['change']],
    ['paths', { operations: { paths: ['/payments', /\{id\}$/g] } }, ['pay', 'change']],
    ['a function', { operations: ({ method }) => method === 'PATCH' }, ['change']],
    ['methods', { methods: ['PUT', 'POST'] }, ['pay', 'replace']],
  ]

  it.each(filters)('describes only what %s name', (_how, options, ids) => {
    const doc = written(shop(), options)
    const described = Object.values<Json>(doc['paths'])
      .flatMap((item) => Object.values<Json>(item))
      .filter((operation) => operation['responses']?.['409'] !== undefined)
    expect(described.map((operation) => operation['operationId'])).toEqual(ids)
  })

  it('says where a key may be left out', () => {
    const doc = written(shop(), { optional: { tags: ['beta'] } })
    const { patch } = doc['paths']['/payments/{id}']
    expect(parameterOf(doc, patch)).toMatchObject({ required: false })
    const examples = (operation: Json) =>
      Object.keys(
        at(doc, operation['responses'][400])['content']['application/problem+json']['examples'],
      )
    expect(examples(patch)).not.toContain('idempotency_key_missing')
    expect(examples(doc['paths']['/payments'].post)).toContain('idempotency_key_missing')
    expect(Object.keys(doc['components'].responses).toSorted()).toEqual([
      'Idempotency400',
      'Idempotency400Optional',
      'Idempotency409',
      'Idempotency413',
      'Idempotency422',
      'Idempotency503',
    ])
  })

  it('speaks of the header, lengths, pattern and statuses that the guard has', () => {
    const doc = written(shop(), {
      keyHeader: 'X-Request-Id',
      keyLengthMin: 8,
      keyLengthMax: 64,
      keyPattern: /^[a-z-]+$/,
      afterExpiry: 'refuse',
      whileInProgress: 'accepted',
    })
    const { post } = doc['paths']['/payments']
    expect(parameterOf(doc, post)).toMatchObject({
      name: 'X-Request-Id',
      schema: { minLength: 8, maxLength: 64, pattern: '^[a-z-]+$' },
    })
    expect(parameterOf(doc, post)).not.toHaveProperty('example')
    expect(post.responses).toHaveProperty('410')
    expect(Object.keys(at(doc, post.responses[202])['headers'])).toEqual([
      'Retry-After',
      'Location',
      'Idempotency-Expires',
      'Idempotent-Replayed',
    ])
  })

  it('speaks as Stripe does in its profile', () => {
    const doc = written(shop(), { profile: 'stripe' })
    const { post } = doc['paths']['/payments']
    expect(Object.keys(post.responses)).toEqual(['201', '400', '409', '413', '503'])
    const media = at(doc, post.responses[400])['content']['application/json'] as Json
    const example = media['examples']['idempotency_key_reused_with_different_payload'] as Json
    expect(example['value']).toMatchObject({ error: { type: 'idempotency_error' } })
    expect(at(doc, media['schema'])['required']).toEqual(['error'])
  })

  it('adds no parameter where the key comes in the body', () => {
    const doc = written(shop(), { keyHeader: false })
    const { post } = doc['paths']['/payments']
    expect(post).not.toHaveProperty('parameters')
    expect(post.responses).toHaveProperty('409')
  })

  it.each([
    [{ operations: { operationIds: ['pya'] } }, 'operations: pya names no operation'],
    [{ optional: { tags: ['bta'] } }, 'optional: bta names no operation'],
    [{ operations: { ids: ['pay'] } }, 'ids'],
    [{ header: 'x' }, 'header'],
    [{ keyPattern: 'x' }, 'keyPattern must be a RegExp'],
    [{ keyHeader: 42 }, 'keyHeader must be'],
    [{ profile: 'ebay' }, 'profile must be'],
    [{ methods: ['post'] }, 'methods'],
  ])('refuses what it cannot mean: %j', (options, message) => {
    expect(() => describeIdempotency(shop(), options as OpenApiOptions)).toThrow(message)
  })
})

describe('what a document says already', () => {
  it('about the key stays, on the operation, on the path, and behind a reference', () => {
    const own = { name: 'idempotency-KEY', in: 'header', schema: { type: 'string' } }
    const doc = written(
      document(
        {
          '/a': { post: { parameters: [own], responses: {} } },
          '/b': { parameters: [own], post: { responses: {} } },
          '/c': { post: { parameters: [{ $ref: '#/components/parameters/Key' }], responses: {} } },
        },
        { components: { parameters: { Key: own } } },
      ),
    )
    expect(doc['paths']['/a'].post.parameters).toEqual([own])
    expect(doc['paths']['/b'].post).not.toHaveProperty('parameters')
    expect(doc['paths']['/c'].post.parameters).toHaveLength(1)
    expect(Object.keys(doc['components'].parameters)).toEqual(['Key'])
  })

  it('about a status stays, and gets our body beside its own', () => {
    const own = { 'application/json': { schema: { type: 'object' } } }
    const theirs = { 'application/problem+json': { schema: { title: 'theirs' } } }
    const doc = written(
      document(
        {
          '/': {
            post: {
              responses: {
                400: { description: 'own', content: own },
                409: { $ref: '#/components/responses/Conflict' },
                422: { description: 'own', content: theirs },
              },
            },
          },
        },
        { components: { responses: { Conflict: { description: 'shared' } } } },
      ),
    )
    const { responses } = doc['paths']['/'].post
    expect(responses[400]).toMatchObject({ description: 'own', content: own })
    expect(Object.keys(responses[400].content)).toContain('application/problem+json')
    expect(responses[409]).toEqual({ $ref: '#/components/responses/Conflict' })
    expect(doc['components'].responses.Conflict).toEqual({ description: 'shared' })
    expect(responses[422]).toEqual({ description: 'own', content: theirs })
  })

  it('about a range of statuses still holds for those that we name', () => {
    const errors = { description: 'e', content: { 'text/plain': {} } }
    const doc = written(
      document(
        {
          '/': {
            post: { responses: { '4XX': { $ref: '#/components/responses/E' }, default: errors } },
          },
        },
        { components: { responses: { E: errors } } },
      ),
    )
    const { responses } = doc['paths']['/'].post
    for (const status of [400, 409, 413, 422, 503]) {
      expect(Object.keys(responses[status].content).toSorted()).toEqual([
        'application/problem+json',
        'text/plain',
      ])
    }
  })

  it('about a success is copied where others share it, and its headers stay', () => {
    const headers = { 'idempotency-expires': { schema: { type: 'string' } } }
    const doc = written(
      document(
        {
          '/': {
            get: { responses: { 200: { $ref: '#/components/responses/Ok' } } },
            post: { responses: { 200: { $ref: '#/components/responses/Ok' }, '2XX': ok } },
          },
        },
        { components: { responses: { Ok: { description: 'ok', headers } } } },
      ),
    )
    expect(doc['components'].responses.Ok).toEqual({ description: 'ok', headers })
    const { responses } = doc['paths']['/'].post
    expect(responses[200]).toMatchObject({ description: 'ok', headers })
    expect(Object.keys(responses[200].headers)).toEqual([
      'idempotency-expires',
      'Idempotent-Replayed',
    ])
    expect(Object.keys(responses['2XX'].headers)).toHaveLength(2)
  })

  it('under our names stays, and ours get another', () => {
    const doc = written(
      document(
        { '/': { post: { responses: {} } } },
        { components: { schemas: { IdempotencyProblem: { type: 'string' } } } },
      ),
    )
    expect(doc['components'].schemas.IdempotencyProblem).toEqual({ type: 'string' })
    expect(doc['components'].schemas.IdempotencyProblem2).toMatchObject({ type: 'object' })
  })

  it('about a path elsewhere is found where it is, once; and left where it is not', () => {
    const doc = describeIdempotency(
      document(
        {
          '/a': { $ref: '#/components/pathItems/Shared' },
          '/b': { $ref: '#/paths/~1a' },
          '/c': { $ref: './other.yaml#/c' },
          '/d': { $ref: '#/paths/~1d' },
        },
        { components: { pathItems: { Shared: { post: { responses: { 201: ok } } } } } },
      ),
    )
    expect(doc['components'].pathItems.Shared.post.parameters).toHaveLength(1)
    expect(doc['paths']['/c']).toEqual({ $ref: './other.yaml#/c' })
  })
})
