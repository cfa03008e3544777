import { join } from 'node:path'
import { defineConfig } from 'vitest/config'

/** Run on both major versions of Nest: the sources import it, so it is theirs that changes. */
const NEST = ['test/adapters/nest*.test.ts']
const NEST_10 = join(import.meta.dirname, 'test/nest10/node_modules/@nestjs')

/** Real servers, processes, installs and long random runs: left out of `npm run test:unit`. */
const SLOW = [
  'test/checklist.test.ts',
  'test/durable/commit-count-databases.test.ts',
  'test/durable/nats*.test.ts',
  'test/durable/rabbitmq*.test.ts',
  'test/durable/relay-stores.test.ts',
  'test/durable/relay-processes.test.ts',
  'test/examples/**/*.test.ts',
  'test/process/**/*.test.ts',
  'test/package/**/*.test.ts',
  'test/simulation/**/*.test.ts',
  'test/stores/dynamodb*.test.ts',
  'test/stores/mysql*.test.ts',
  'test/stores/cached-redis*.test.ts',
  'test/stores/postgres*.test.ts',
  'test/stores/redis*.test.ts',
  'test/stores/sql-*.test.ts',
]

export default defineConfig({
  test: {
    // A process of its own for each test file: SQLite handles, warnings and signal handlers of
    // one file never reach another.
    pool: 'forks',
    // All cores, where the default would leave one idle: most of these tests wait, not compute.
    maxWorkers: '100%',
    testTimeout: 30_000,
    hookTimeout: 30_000,
    projects: [
      {
        extends: true,
        test: {
          name: 'unit',
          include: ['test/**/*.test.ts'],
          // Naming what is left out replaces the usual list: packages bring tests of their own.
          exclude: [...SLOW, '**/node_modules/**'],
          provide: { nest: 11 },
        },
      },
      {
        extends: true,
        resolve: { alias: [{ find: /^@nestjs\/([a-z-]+)$/, replacement: `${NEST_10}/$1` }] },
        test: { name: 'nest10', include: NEST, provide: { nest: 10 } },
      },
      {
        extends: true,
        test: {
          name: 'slow',
          include: SLOW,
          globalSetup: ['test/servers/global-setup.ts'],
        },
      },
    ],
  },
})
