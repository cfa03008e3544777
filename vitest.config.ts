import { availableParallelism } from 'node:os'
import { join, relative } from 'node:path'
import { defineConfig } from 'vitest/config'
import { BaseSequencer, type TestSpecification } from 'vitest/node'
import { scratchInMemory } from './test/servers/scratch-memory.ts'

/** Run on every supported major version of Nest, which the sources import: an alias changes it. */
const NEST = ['test/adapters/nest*.test.ts']
const NEST_IMPORT = /^@nestjs\/([a-z-]+(?:\/package\.json)?)$/

/** `npm run test:full` adds the matrices that do not fit into the time of `npm test`. */
const isFull = process.env['ONCEKEY_TEST_FULL'] === '1'

/** Tests on real servers. */
const SERVERS = [
  'test/durable/commit-count-databases.test.ts',
  'test/durable/isolation-stores.test.ts',
  'test/durable/nats*.test.ts',
  'test/durable/rabbitmq*.test.ts',
  'test/durable/relay-stores.test.ts',
  'test/stores/dynamodb*.test.ts',
  'test/stores/mysql*.test.ts',
  'test/stores/cached-redis*.test.ts',
  'test/stores/postgres*.test.ts',
  'test/stores/redis*.test.ts',
  'test/stores/sql-*.test.ts',
  'test/stores/unheard-stores.test.ts',
]

/** Processes, installs and long random runs: with the servers left out of `npm run test:unit`. */
const SLOW = [
  'test/chaos/**/*.test.ts',
  'test/checklist.test.ts',
  'test/durable/relay-processes.test.ts',
  'test/examples/**/*.test.ts',
  'test/process/**/*.test.ts',
  'test/package/**/*.test.ts',
  'test/simulation/**/*.test.ts',
  'test/versions/**/*.test.ts',
]

/**
 * What listens to the whole process, or changes it: warnings that come once, promises that nobody
 * handles, timers and modules that are replaced, what was imported. Each in a process of its own.
 */
const OF_THE_PROCESS = [
  'test/peers.test.ts',
  'test/adapters/express-errors.test.ts',
  'test/adapters/express-store-failure.test.ts',
  'test/adapters/fast-shapes.test.ts',
  'test/adapters/fastify-inject.test.ts',
  'test/adapters/fetch.test.ts',
  'test/adapters/hono.test.ts',
  'test/adapters/koa-unawaited.test.ts',
  'test/adapters/misuse.test.ts',
  'test/adapters/node.test.ts',
  'test/adapters/promotion.test.ts',
  'test/adapters/status.test.ts',
  'test/adapters/web-graph.test.ts',
  'test/bench/groups.test.ts',
  'test/clients/hostile-adapters.test.ts',
  'test/clients/mishaps.test.ts',
  'test/core/events.test.ts',
  'test/core/policy.test.ts',
  'test/core/unheard.test.ts',
  'test/durable/commit-count.test.ts',
  'test/http/hostile-http.test.ts',
  'test/stores/cached-fuzz.test.ts',
  'test/stores/cached-store.test.ts',
  'test/stores/client-options.test.ts',
  'test/stores/sqlite-replaced.test.ts',
  'test/stores/sqlite-store.test.ts',
]
const SERVERS_OF_THE_PROCESS = [
  'test/stores/dynamodb-store.test.ts',
  'test/stores/dynamodb-time.test.ts',
  'test/stores/postgres-warnings.test.ts',
  'test/stores/postgres-watch.test.ts',
  'test/stores/redis-check.test.ts',
  'test/stores/redis-faults.test.ts',
  'test/stores/unheard-stores.test.ts',
]

/** Begun first, so that none of them is still at work when everything else is done. */
const LONGEST = [
  'test/chaos/chaos.test.ts',
  'test/process/payment-kills.test.ts',
  'test/simulation/planted-bugs.test.ts',
  'test/package/package.test.ts',
  'test/chaos/planted-chaos.test.ts',
  'test/simulation/simulation.test.ts',
  'test/durable/relay-processes.test.ts',
  'test/process/dynamodb-processes.test.ts',
  'test/process/mysql-payment-kills.test.ts',
  'test/process/postgres-payment-kills.test.ts',
  'test/process/http-crash.test.ts',
  'test/examples/payments-nodes.test.ts',
  'test/stores/dynamodb.test.ts',
  'test/stores/postgres-plans.test.ts',
  'test/adapters/adapter-cases.test.ts',
  'test/adapters/nest-cases.test.ts',
]

class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const rank = ({ moduleId }: TestSpecification) => {
      const place = LONGEST.indexOf(relative(import.meta.dirname, moduleId))
      return place === -1 ? LONGEST.length : place
    }
    return (await super.sort(files)).toSorted((a, b) => rank(a) - rank(b))
  }
}

/** Naming what is left out replaces the usual list: packages bring tests of their own. */
const without = (...files: readonly string[]) => [...files, '**/node_modules/**']

/** One file after the other in the same process, which is most of what a short one would start. */
const SHARED = { isolate: false } as const
const globalSetup = ['test/servers/global-setup.ts']

/** The Nest suite on an older major version, from the workspace that installs it. */
const onNest = (major: number) => {
  const packages = join(import.meta.dirname, `test/nest${major}/node_modules/@nestjs`)
  return {
    extends: true,
    resolve: { alias: [{ find: NEST_IMPORT, replacement: `${packages}/$1` }] },
    test: { name: `nest${major}`, include: NEST, provide: { nest: major }, ...SHARED },
  } as const
}

/** Projects that only `npm run test:full` runs. */
const MATRICES = [onNest(11)]

scratchInMemory()

export default defineConfig({
  test: {
    // Processes, not threads: SQLite handles and signal handlers are of the process.
    pool: 'forks',
    // One more than there are cores: a good part of these tests waits for other processes.
    maxWorkers: availableParallelism() + 1,
    testTimeout: 60_000,
    hookTimeout: 60_000,
    sequence: { sequencer: LongestFirst },
    projects: [
      {
        extends: true,
        test: {
          name: 'unit',
          include: ['test/**/*.test.ts'],
          exclude: without(...SERVERS, ...SLOW, ...OF_THE_PROCESS),
          provide: { nest: 12 },
          ...SHARED,
        },
      },
      { extends: true, test: { name: 'unit-process', include: OF_THE_PROCESS } },
      onNest(10),
      {
        extends: true,
        test: {
          name: 'servers',
          include: SERVERS,
          exclude: without(...SERVERS_OF_THE_PROCESS),
          globalSetup,
          ...SHARED,
        },
      },
      {
        extends: true,
        test: { name: 'slow', include: [...SLOW, ...SERVERS_OF_THE_PROCESS], globalSetup },
      },
      ...(isFull ? MATRICES : []),
    ],
  },
})
