import { closeSync, openSync, readSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import { defineConfig } from 'vitest/config'
import { BaseSequencer, type TestSpecification } from 'vitest/node'
import { scratchInMemory } from './test/servers/scratch-memory.ts'

// The name of a test file says how it runs:
//
// - `name.test.ts`: in a process that it shares with others. No servers.
// - `name.process.test.ts`: alone in its process, because it listens to the process or changes it
//   (warnings, unhandled rejections, replaced timers and modules). No servers.
// - `name.server.test.ts`: on real servers, in a shared process.
// - `name.slow.test.ts`: alone in its process, with real servers, other processes, installs or long
//   random runs.
const PROCESS = ['test/**/*.process.test.ts']
const SERVER = ['test/**/*.server.test.ts']
const SLOW = ['test/**/*.slow.test.ts']

/** Run on every supported major version of Nest, which the sources import: an alias changes it. */
const NEST = ['test/adapters/nest/*.test.ts']
const NEST_IMPORT = /^@nestjs\/([a-z-]+(?:\/package\.json)?)$/

/** `npm run test:full` adds the matrices that do not fit into the time of `npm test`. */
const isFull = process.env['ONCEKEY_TEST_FULL'] === '1'

/**
 * Starts the longest files first, so that none of them runs alone at the end. A long file says on
 * its first line how long it takes: `// Takes about 40 s.`
 */
class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const seconds = new Map(files.map((file) => [file, secondsOf(file.moduleId)]))
    return (await super.sort(files)).toSorted((a, b) => seconds.get(b)! - seconds.get(a)!)
  }
}

function secondsOf(path: string): number {
  const start = Buffer.alloc(80)
  const file = openSync(path, 'r')
  readSync(file, start)
  closeSync(file)
  return Number(/^\/\/ Takes about (\d+) s\./.exec(start.toString())?.[1] ?? 0)
}

/** Vitest replaces its default list by a given one, so `node_modules` must be named again. */
const without = (...files: readonly string[]) => [...files, '**/node_modules/**']

/** One file after the other in the same process: starting one costs more than a short test. */
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
    // Processes, not threads: SQLite handles and signal handlers belong to a process.
    pool: 'forks',
    // One more than there are cores: many of these tests wait for other processes.
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
          exclude: without(...PROCESS, ...SERVER, ...SLOW),
          provide: { nest: 12 },
          ...SHARED,
        },
      },
      { extends: true, test: { name: 'unit-process', include: PROCESS } },
      onNest(10),
      { extends: true, test: { name: 'servers', include: SERVER, globalSetup, ...SHARED } },
      { extends: true, test: { name: 'slow', include: SLOW, globalSetup } },
      ...(isFull ? MATRICES : []),
    ],
  },
})
