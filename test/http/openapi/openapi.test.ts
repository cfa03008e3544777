import { describe, expect, expectTypeOf, it } from 'vitest'
import { describeIdempotency, type OpenApiOptions } from '../../../src/http/openapi/openapi.ts'
import { PROBLEMS } from '../../../src/protocol/problems.ts'

// Documents can have any shape.
// oxlint-disable-next-line typescript/no-explicit-any
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

/** Resolves a local reference. */
function at(doc: Json, value: Json): Json {
  if (typeof value['$ref'] !== 'string') return value
  const names = value['$ref']
    .slice(2)
    .split('/')
    .map((name: string) => name.replaceAll('~1', '/'))
  const target = names.reduce<Json | undefined>((one, name) => one?.[name] as Json, doc)
  if (target === undefined) throw new Error(`${value['$ref']} has no target`)
  return at(doc, target)
}

/** Checks the rules of OpenAPI validators on the objects that we write. */
function check(doc: Json): void {
  const visit = (value: unknown): void => {
    if (typeof value !== 'object' || value === null) return
    if (typeof (value as Json)['$ref'] === 'string') at(doc, value)
    for (const inner of Object.values(value)) visit(inner)
  }
  visit(doc)
  for (const item of Object.values<Json>(doc['paths'])) {
    for (const name of ['get', 'post', 'patch']) {
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
  // Compared as text: a document that is kept in Git must not change between runs.
  expect(JSON.stringify(describeIdempotency(after, options))).toBe(JSON.stringify(after))
  check(after)
  return after
}

const parameterOf = (doc: Json, operation: Json): Json | undefined =>
  ((operation['parameters'] ?? []) as Json[])
    .map((one) => at(doc, one))
    .find((one) => one['in'] === 'header')

describe('describeIdempotency', () => {
  it('adds the key, its refusals and its headers to POST and PATCH operations', () => {
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

  it('adds the answers of the status route to a GET that is named as status', () => {
    const own = { 200: ok, 410: { description: 'gone', content: { 'text/plain': {} } } }
    const get = { operationId: 'status', responses: own }
    const shared = { get, post: { operationId: 'again', responses: { 201: ok } } }
    const doc = written(
      document({ '/operations/{id}': shared, '/other': { get: structuredClone(get) } }),
      { status: { paths: [/^\/operations/] } },
    )
    const { responses, parameters } = doc['paths']['/operations/{id}'].get
    expect(parameters).toBeUndefined()
    expect(Object.keys(responses)).toEqual(['200', '202', '404', '409', '410', '503'])
    expect(Object.keys(responses[200].headers)).toContain('Idempotent-Replayed')
    const accepted = at(doc, responses[202])
    expect(Object.keys(accepted['headers']).slice(0, 2)).toEqual(['Retry-After', 'Location'])
    const progress = at(doc, accepted['content']['application/json']['schema'])
    expect(progress['properties']['status']['enum']).toEqual(['pending', 'in_progress'])
    const conflict = at(doc, responses[409])['content']['application/problem+json'] as Json
    expect(Object.keys(conflict['examples'])).toEqual([
      PROBLEMS.retry_required.code,
      PROBLEMS.outcome_unknown.code,
      PROBLEMS.reply_unreadable.code,
    ])
    expect(Object.keys(responses[410].content)).toEqual(['text/plain', 'application/problem+json'])
    expect(Object.keys(doc['paths']['/operations/{id}'].post.responses)).not.toContain('404')
    expect(doc['paths']['/other'].get).toEqual(get)
  })

  it('leaves every GET unchanged unless it is named', () => {
    const doc = written(shop(), { status: ({ path }) => path === '/nowhere' })
    expect(doc['paths']['/payments'].get.responses).toEqual({ 200: ok })
    const named = () => describeIdempotency(shop(), { status: { operationIds: ['pay'] } })
    expect(named).toThrow('describeIdempotency.status: pay names no operation')
  })

  it('keeps the type of the document, and accepts version 3.0', () => {
    const doc = { openapi: '3.0.3', paths: { '/': { post: { responses: {} } } } } as const
    expectTypeOf(describeIdempotency(doc)).toEqualTypeOf<typeof doc>()
    check(describeIdempotency<Json>(doc))
  })

  it.each([undefined, '2.0', 3.1, '3.9.0'])('refuses a document of version %j', (openapi) => {
    expect(() => describeIdempotency({ openapi })).toThrow('version 3.0, 3.1 or 3.2')
  })

  const filters: readonly [string, OpenApiOptions, string[]][] = [
    ['operationIds', { operations: { operationIds: ['pay'] } }, ['pay']],
    ['tags', { operations: { tags: ['beta'] } }, ['change']],
    ['paths', { operations: { paths: ['/payments', /\{id\}$/g] } }, ['pay', 'change']],
    ['a function', { operations: ({ method }) => method === 'PATCH' }, ['change']],
    ['methods', { methods: ['PUT', 'POST'] }, ['pay', 'replace']],
  ]

  it.each(filters)('describes only the operations that %s name', (_how, options, ids) => {
    const doc = written(shop(), options)
    const described = Object.values<Json>(doc['paths'])
      .flatMap((item) => Object.values<Json>(item))
      .filter((operation) => operation['responses']?.['409'] !== undefined)
    expect(described.map((operation) => operation['operationId'])).toEqual(ids)
  })

  it('describes where a key is optional', () => {
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

  it('uses the header, lengths, pattern and statuses of the guard', () => {
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

  it('describes quoted keys when the guard accepts no others', () => {
    const doc = written(shop(), { keySyntax: 'strict', keyPattern: /^[a-f0-9-]+$/ })
    expect(parameterOf(doc, doc['paths']['/payments'].post)).toMatchObject({
      schema: { minLength: 3, maxLength: 257, pattern: '^".*"$' },
    })
    const plain = written(shop(), { keySyntax: 'strict' })
    const { example } = parameterOf(plain, plain['paths']['/payments'].post)!
    expect(example).toMatch(/^"[0-9a-f-]{36}"$/)
  })

  it('leaves out a pattern whose flags have no OpenAPI form', () => {
    const doc = written(shop(), { keyPattern: /^pay_/i })
    const parameter = parameterOf(doc, doc['paths']['/payments'].post)!
    expect(parameter['schema']).not.toHaveProperty('pattern')
  })

  it('returns documents that share no objects', () => {
    const spoilt = describeIdempotency(shop())
    for (const component of Object.values<Json>(spoilt['components'].headers)) {
      component['schema'].type = 'spoilt'
    }
    expect(JSON.stringify(describeIdempotency(shop()))).not.toContain('spoilt')
  })

  it('describes the Stripe errors in the stripe profile', () => {
    const doc = written(shop(), { profile: 'stripe' })
    const { post } = doc['paths']['/payments']
    expect(Object.keys(post.responses)).toEqual(['201', '400', '409', '413', '503'])
    const media = at(doc, post.responses[400])['content']['application/json'] as Json
    const example = media['examples']['idempotency_key_reused_with_different_payload'] as Json
    expect(example['value']).toMatchObject({ error: { type: 'idempotency_error' } })
    expect(at(doc, media['schema'])['required']).toEqual(['error'])
  })

  it('adds no parameter when the key is in the body', () => {
    const doc = written(shop(), { keyHeader: false })
    const { post } = doc['paths']['/payments']
    expect(post).not.toHaveProperty('parameters')
    expect(post.responses).toHaveProperty('409')
  })

  it.each([
    [{ operations: { operationIds: ['pya'] } }, 'operations: pya names no operation'],
    [{ optional: { tags: ['bta'] } }, 'optional: bta names no operation'],
    [{ operations: { ids: ['pay'] } }, 'ids'],
    [{ operations: {} }, 'operations must be a function or have a list'],
    [{ operations: { tags: 'money' } }, 'operations must be a function or have a list'],
    [{ optional: { paths: [] } }, 'optional must be a function or have a list'],
    [{ keyHeader: 'two words' }, 'keyHeader must be'],
    [{ keyLengthMin: 9, keyLengthMax: 8 }, 'keyLengthMin (9) must not exceed'],
    [{ header: 'x' }, 'header'],
    [{ keyPattern: 'x' }, 'keyPattern must be a RegExp'],
    [{ keyHeader: 42 }, 'keyHeader must be'],
    [{ profile: 'ebay' }, 'profile must be'],
    [{ methods: ['post'] }, 'methods'],
  ])('refuses the options %j', (options, message) => {
    expect(() => describeIdempotency(shop(), options as OpenApiOptions)).toThrow(message)
  })
})

describe('what a document says already', () => {
  it('keeps a key parameter on the operation, on the path, and behind a reference', () => {
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

  it('keeps an existing response, and adds our body beside its own', () => {
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

  it('applies an existing range of statuses to the statuses that we add', () => {
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

  it('combines our body with an existing range of the same media type', () => {
    const theirs = { type: 'object', title: 'theirs' }
    const content = { 'application/problem+json': { schema: theirs, example: {} } }
    const headers = { 'X-Trace': { schema: { type: 'string' } } }
    const doc = written(
      document({
        '/': { post: { responses: { 201: ok, default: { description: 'e', content, headers } } } },
      }),
      { whileInProgress: 'accepted' },
    )
    const { responses } = doc['paths']['/'].post
    const media = responses[422].content['application/problem+json'] as Json
    expect(media['schema'].anyOf[0]).toEqual(theirs)
    expect(at(doc, media['schema'].anyOf[1])['required']).toContain('code')
    expect(media).not.toHaveProperty('example')
    expect(Object.keys(responses[409].headers)).toEqual(['X-Trace', 'Retry-After'])
    // A default response is for failures: 202 was not covered by it.
    expect(at(doc, responses[202])['content']).not.toHaveProperty(['application/problem+json'])
  })

  it('copies a shared success response, and keeps its headers', () => {
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

  it('keeps and describes fields beside a reference', () => {
    const doc = written(
      document(
        {
          '/a': {
            $ref: '#/components/pathItems/Shared',
            post: {
              responses: { 200: { $ref: '#/components/responses/Ok', description: 'mine' } },
            },
          },
        },
        {
          components: {
            responses: { Ok: ok },
            pathItems: { Shared: { patch: { responses: { 200: ok } } } },
          },
        },
      ),
    )
    const { post } = doc['paths']['/a']
    expect(parameterOf(doc, post)).toBeDefined()
    expect(post.responses[200]).toMatchObject({ description: 'mine' })
    expect(post.responses[200]).not.toHaveProperty('$ref')
    expect(doc['components'].pathItems.Shared.patch.parameters).toHaveLength(1)
  })

  it('changes only the selected operations of a shared object', () => {
    const responses = { 200: ok, 400: { description: 'own' } }
    const operation = { responses, tags: ['money'] }
    const item = { post: operation, get: operation }
    const doc = written(document({ '/a': item, '/b': item, '/c': { get: { responses } } }), {
      operations: { paths: ['/b'] },
    })
    const untouched = [doc['paths']['/a'].post, doc['paths']['/b'].get, doc['paths']['/c'].get]
    for (const one of untouched) {
      expect(one.responses).toEqual(responses)
      expect(one).not.toHaveProperty('parameters')
    }
    expect(doc['paths']['/b'].post.responses).toHaveProperty('409')
    expect(doc['paths']['/b'].post.responses[400].content).toBeDefined()
  })

  it('leaves circles, extensions and references without a target unchanged', () => {
    const node: Json = { type: 'object', properties: {} }
    node['properties'].child = node
    const content = { 'application/json': { schema: node } }
    const doc = describeIdempotency(
      document({
        'x-hooks': { post: { responses: { 200: ok } } },
        '/a': {
          post: {
            parameters: [{ $ref: '#/components/parameters/100%' }],
            responses: { 200: { description: 'tree', content }, 500: { $ref: '#/nowhere' } },
          },
        },
      }),
    )
    expect(doc['paths']['x-hooks'].post).toEqual({ responses: { 200: ok } })
    expect(doc['paths']['/a'].post.parameters).toHaveLength(2)
    expect(doc['paths']['/a'].post.responses[500]).toEqual({ $ref: '#/nowhere' })
  })

  it('keeps existing components, and gives ours another name', () => {
    const doc = written(
      document(
        { '/': { post: { responses: {} } } },
        { components: { schemas: { IdempotencyProblem: { type: 'string' } } } },
      ),
    )
    expect(doc['components'].schemas.IdempotencyProblem).toEqual({ type: 'string' })
    expect(doc['components'].schemas.IdempotencyProblem2).toMatchObject({ type: 'object' })
  })

  it('describes a path that two names refer to under either name', () => {
    const doc = written(
      document({
        '/a': { post: { responses: { 201: ok } } },
        '/b': { $ref: '#/paths/~1a' },
      }),
      { operations: { paths: ['/b'] } },
    )
    expect(doc['paths']['/a'].post.parameters).toHaveLength(1)
  })

  it('describes a referenced path once, and leaves an unresolvable one unchanged', () => {
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
