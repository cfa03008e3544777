import { InvalidOptionsError } from '../errors.ts'
import { describe } from '../options.ts'
import type { Store } from './store.ts'

/** Throws if the value is not a store. The error for a database client names the store to use. */
export function checkStore(where: string, store: unknown): asserts store is Store {
  if (hasMethods(store, ['claim'])) return
  const wrapper = WRAPPERS.find(({ methods }) => hasMethods(store, methods))
  if (wrapper === undefined) {
    throw new InvalidOptionsError(
      `${where} must be a store such as sqliteStore({ path }), got ${describe(store)}`,
    )
  }
  throw new InvalidOptionsError(
    `${where} must be a store, got ${wrapper.client}: wrap it, as in ${wrapper.use}`,
  )
}

interface Wrapper {
  /** The methods by which a client is recognised. The first match in the list applies. */
  readonly methods: readonly string[]
  readonly client: string
  readonly use: string
}

const WRAPPERS: readonly Wrapper[] = [
  {
    methods: ['unsafe', 'begin'],
    client: 'a client of postgres.js',
    use: 'postgresStore({ pool })',
  },
  { methods: ['getConnection', 'query'], client: 'a pool of mysql2', use: 'mysqlStore({ pool })' },
  {
    methods: ['execute', 'query', 'beginTransaction'],
    client: 'a connection of mysql2',
    use: 'mysqlStore({ pool })',
  },
  {
    methods: ['connect', 'query'],
    client: 'a pool or client of pg',
    use: 'postgresStore({ pool })',
  },
  { methods: ['defineCommand'], client: 'a client of ioredis', use: 'redisStore({ client })' },
  { methods: ['sendCommand'], client: 'a client of redis', use: 'redisStore({ client })' },
  {
    methods: ['send', 'destroy'],
    client: 'a client of the AWS SDK',
    use: 'dynamodbStore({ client: new DynamoDB() })',
  },
  {
    methods: ['prepare', 'exec'],
    client: 'a SQLite database',
    use: 'sqliteStore({ path }) with its path',
  },
]

function hasMethods(value: unknown, names: readonly string[]): boolean {
  if (value === null || (typeof value !== 'object' && typeof value !== 'function')) return false
  return names.every((name) => typeof Reflect.get(value, name) === 'function')
}
