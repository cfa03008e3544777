import { readdirSync, readFileSync } from 'node:fs'
import { basename, dirname, join, posix } from 'node:path'
import { describe, expect, it } from 'vitest'

// The house rules that a machine can check. Boring on purpose: a table and a loop for each rule,
// and every fault names its file. Function length, parameters and nesting are oxlint's.

const root = join(import.meta.dirname, '..')
const IGNORED: readonly string[] = [
  '.git',
  '.DS_Store',
  'node_modules',
  'dist',
  'data',
  'coverage',
  'chaos-reports',
]

const files = walk('')
const code = files.filter((file) => file.endsWith('.ts'))
const sources = code.filter((file) => file.startsWith('src/'))

// Which folder of src/ may import which. This table IS the architecture, and ARCHITECTURE.md
// explains it. A folder may always import itself. A store may import `stores/kit`, and no other
// store. No folder may import `testing`.
const MAY_IMPORT: Readonly<Record<string, readonly string[]>> = {
  'index.ts': ['protocol', 'core', 'http', 'stores', 'stores/kit'],
  protocol: [],
  core: [],
  http: ['core', 'protocol'],
  adapters: ['core', 'protocol', 'http'],
  stores: ['core', 'stores/kit'],
  durable: ['core', 'protocol', 'http'],
  encryption: ['core'],
  testing: ['core', 'http'],
}

// Which npm packages and Node modules may be used by the files whose path starts so.
const MAY_USE: Readonly<Record<string, readonly string[]>> = {
  protocol: ['structured-headers'],
  'core/record/identity.ts': ['node:crypto'],
  encryption: ['node:crypto'],
  http: ['node:async_hooks', 'node:crypto', 'node:util', 'node:zlib'],
  adapters: ['node:http', 'node:stream'],
  'adapters/express': ['express', 'node:async_hooks'],
  'adapters/fastify': ['fastify'],
  'adapters/hono': ['hono'],
  'adapters/koa': ['koa', '@koa/router'],
  // Decorators and modules are values of the framework: there is no Nest without importing it.
  'adapters/nest': ['@nestjs/common', '@nestjs/core', 'rxjs'],
  'stores/cached': ['node:crypto'],
  'stores/dynamodb': ['node:async_hooks'],
  'stores/postgres': ['node:crypto', 'node:net'],
  'stores/redis': ['node:crypto'],
  'stores/sqlite': ['node:fs', 'node:module', 'node:path', 'node:sqlite'],
  testing: ['node:assert', 'node:assert/strict', 'node:crypto'],
  'testing/adapter-cases': ['node:http', 'node:net', 'node:stream', 'node:zlib'],
}

/** Peers are described or imported as types: the package must load where they are absent. */
const TYPES_ONLY: readonly string[] = ['express', 'fastify', 'hono', 'koa', '@koa/router']

describe('imports', () => {
  it('imports follow the direction of the architecture', () => {
    const faults = sources.flatMap((file) => {
      const allowed = MAY_IMPORT[layerOf(file)]
      if (allowed === undefined) return [`${file}: its folder has no line in MAY_IMPORT`]
      return importsOf(file)
        .filter(({ name }) => name.startsWith('.'))
        .map(({ name }) => posix.join(posix.dirname(file), name))
        .filter((target) => unitOf(target) !== unitOf(file) && !allowed.includes(placeOf(target)))
        .map((target) => `${file}: imports ${target}`)
    })
    expect(faults).toEqual([])
  })

  it('imports name only the packages and Node modules that their folder may use', () => {
    const faults = sources.flatMap((file) => {
      const path = file.replace('src/', '')
      const allowed = Object.entries(MAY_USE)
        .filter(([place]) => path.startsWith(place))
        .flatMap(([, names]) => names)
      return importsOf(file)
        .filter(({ name }) => !name.startsWith('.'))
        .filter(({ name, asType }) => {
          return !allowed.includes(name) || (TYPES_ONLY.includes(name) && !asType)
        })
        .map(({ name }) => `${file}: uses ${name}`)
    })
    expect(faults).toEqual([])
  })

  it('examples import only published names', () => {
    const faults = code
      .filter((file) => file.startsWith('examples/'))
      .filter((file) => importsOf(file).some(({ name }) => name.includes('/src/')))
    expect(faults).toEqual([])
  })
})

describe('code', () => {
  it('sources read the time only from the clock', () => {
    const time =
      /\bDate\.now\b|\bnew Date\(\s*\)|\bset(Timeout|Interval|Immediate)\b|\bperformance\./
    const asking = sources.filter((file) => !file.endsWith('clock.ts'))
    expect(codeMatching(asking, time)).toEqual([])
  })

  it('sources neither print nor end the process', () => {
    const pattern = /\bconsole\.\w+|\bprocess\.(exit|abort|stdout|stderr)\b/
    expect(codeMatching(sources, pattern)).toEqual([])
  })

  it('modules have no default export', () => {
    const own = code.filter((file) => file !== 'vitest.config.ts')
    expect(codeMatching(own, /\bexport default\b|\bas default\b/)).toEqual([])
  })

  it('test files skip no test', () => {
    // Spelt in pieces, here and below, so that this file does not find itself.
    const conditional = ['skip', 'run'].map((word) => `${word}If`).join('|')
    const leftOut = `\\b(it|test|describe)(\\.\\w+)*\\.(skip|only|todo|fails|${conditional})\\b`
    const tests = code
      .filter((file) => file.startsWith('test/'))
      // The runners of cases skip by exact name, each with its reason in the data.
      .filter((file) => !/\/run-[a-z]+-cases\.ts$/.test(file))
    expect(codeMatching(tests, new RegExp(leftOut))).toEqual([])
  })

  it('test files in a shared process neither listen to it nor change it', () => {
    const shared = code
      .filter((file) => file.startsWith('test/') && file.endsWith('.test.ts'))
      .filter((file) => !/\.(process|slow)\.test\.ts$/.test(file))
    const what = 'process|globalThis|console|[A-Z]\\w+\\.prototype'
    const touches = [
      '\\bprocess\\.(on|once|chdir|emitWarning)\\(|\\bprocess\\.env\\S* = ',
      '\\bvi\\.(mock|doMock|resetModules|stubGlobal|stubEnv|useFakeTimers)\\(',
      `\\bspyOn\\((${what}),`,
    ]
    expect(codeMatching(shared, new RegExp(touches.join('|')))).toEqual([])
  })
})

describe('files', () => {
  it('files are short enough to read', () => {
    const faults = code
      .map((file) => ({ file, lines: read(file).trimEnd().split('\n').length }))
      .filter(({ file, lines }) => lines > (file.startsWith('test/') ? 600 : 500))
      .map(({ file, lines }) => `${file}: ${lines} lines`)
    expect(faults).toEqual([])
  })

  it('lines have at most 100 columns', () => {
    // A link cannot be broken in two.
    expect(textMatching(code, /^(?!.*:\/\/).{101,}$/u)).toEqual([])
  })

  it('files are named in kebab case, for what they hold', () => {
    const kebab = /^[a-z0-9]+(-[a-z0-9]+)*(\.(process|server|slow))?(\.(test|config|d))?(\.ts)?$/
    const vague = /^(utils?|common|helpers?|types|misc)$/
    const isWellNamed = (part: string): boolean =>
      kebab.test(part) && !part.split(/[-.]/).some((word) => vague.test(word))
    expect(code.filter((file) => !file.split('/').every(isWellNamed))).toEqual([])
  })

  it('files have Unix line ends, no trailing space, and end in a newline', () => {
    expect(textMatching(files, /\r|[ \t]$/)).toEqual([])
    expect(files.filter((file) => !read(file).endsWith('\n'))).toEqual([])
  })

  const written = files.filter((file) => file !== 'package-lock.json')

  it('comments and docs name only files that exist', () => {
    const roots = 'bench|chaos|examples|src|test|core|http|adapters|durable|stores'
    const path = new RegExp(`(?<![\\w./'-])(?:${roots})/[\\w./-]+\\.ts\\b`, 'g')
    const known = new Set(code)
    const faults = files
      .filter((file) => /\.(?:md|ts)$/.test(file))
      .flatMap((file) =>
        [...read(file).matchAll(path)].map(([name]) => ({ file, name: name.replace(/^\.\//, '') })),
      )
      .filter(({ file, name }) => {
        // A README may name the files of its folder.
        const places = [name, `src/${name}`, posix.join(posix.dirname(file), name)]
        return !places.some((place) => known.has(place))
      })
    expect(faults.map(({ file, name }) => `${file}: ${name}`)).toEqual([])
  })

  it('files hold no leftover markers', () => {
    const markers = ['TO-DO', 'FIX-ME', 'X-XX', 'HA-CK'].join('|').replaceAll('-', '')
    expect(textMatching(written, new RegExp(`\\b(${markers})\\b`))).toEqual([])
  })

  it('files name no machine and no registry', () => {
    const folders = ['work', 'farm', 'root', 'home', 'Users'].join('|')
    const hosts = ['registry-npm', 'deb-debian'].join('|').replaceAll('-', '\\.')
    const machine = new RegExp(`(^|[^\\w.])/(${folders})/|${hosts}`)
    expect(textMatching(written, machine)).toEqual([])
  })
})

/** The files that each SQL store has, so that a reader of one finds the way in the others. */
const SQL_FILES: readonly string[] = [
  ...['index', 'options', 'client', 'failures', 'store', 'calls', 'columns', 'sql', 'claims'],
  ...['settlements', 'upkeep', 'transaction', 'caller-transaction', 'migrations'],
  ...['driver/driver', 'driver/connections'],
  ...['durable/tables', 'durable/operation-columns', 'durable/message-columns'],
  ...['durable/phase-sql', 'durable/message-sql', 'durable/act-sql'],
  ...['durable/phases', 'durable/outbox', 'durable/acts'],
  ...['turns/due', 'turns/unknown', 'turns/messages', 'turns/sql', 'turns/walk'],
]

const exceptions = (reason: string, names: readonly string[]): Record<string, string> =>
  Object.fromEntries(names.map((name) => [name, reason]))

/** Where a SQL store differs, and why. */
const SQL_EXCEPTIONS: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  sqlite: {
    client: 'the store opens the file itself',
    calls: 'its calls are synchronous and need no connection of a pool',
    'driver/file-access': 'chooses the reader or the writer, and reads the time under the lock',
    'driver/write-turns': 'one writer for all, so write transactions wait in a queue',
  },
  postgres: {
    ...exceptions('is one of two drivers, and PostgreSQL reports more about a connection', [
      'driver/giving-up',
      'driver/pg',
      'driver/pg-client',
      'driver/pg-connections',
      'driver/postgres-js',
      'driver/postgres-js-sockets',
      'driver/values',
    ]),
    ...exceptions('decides in a stored function, which saves round trips', [
      'functions/acts',
      'functions/claim',
      'functions/functions',
      'functions/message-tenants',
      'functions/message-turns',
      'functions/outbox',
      'functions/parts',
      'functions/phases',
      'functions/turn-parts',
      'functions/turns',
      'functions/upkeep',
    ]),
    'schema/index-builds': 'builds indexes concurrently, outside a transaction',
    'schema/migration-limit': 'a migration waits for a lock only so long',
    watcher: 'waits for results by LISTEN and NOTIFY',
  },
  mysql: {
    moves: 'decides in JavaScript, and writes on condition that the row has not changed',
    'statement-watch': 'a deadlock ends a transaction of MySQL while its caller still runs',
    'durable/partition-sql': 'keeps a counter row for each partition of messages',
    'durable/claim-messages': 'a claim of messages takes several statements here',
    'durable/prune-messages': 'removes the counters of empty partitions, too',
    'turns/records': 'shared by the turns of due and of unknown operations',
  },
}

/** The files that a store without SQL shares with the SQL stores. */
const SHARED_FILES: readonly string[] = [
  ...['index', 'options', 'client', 'failures', 'store', 'calls', 'claims', 'settlements'],
  ...['upkeep', 'driver/driver'],
]

/** Where a store without SQL differs, and why. */
const OTHER_EXCEPTIONS: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  redis: {
    ...exceptions('decides in scripts that the server runs', [
      'claims',
      'settlements',
      'upkeep',
      'scripts/answers',
      'scripts/packer',
      'scripts/prelude',
      'scripts/requests',
      'scripts/scripts',
      'scripts/upkeep',
    ]),
    ...exceptions('is one of two drivers, and connections are shared with the application', [
      'driver/ioredis',
      'driver/node-redis',
      'driver/replication',
      'driver/server-clocks',
      'driver/until-aborted',
    ]),
    buckets: 'a script may use the keys of one slot of a cluster only',
    check: 'finds settings of a server that lose acknowledged writes',
    readiness: 'runs the check before the first claim',
    'record-index': 'finds the identity of a record by its id',
    refusals: 'a server can refuse a script before it runs',
  },
  dynamodb: {
    'driver/driver': 'there is one client, the AWS SDK',
    ...exceptions('adds what the SDK does not show: limits, attempts, the time', [
      'driver/agents',
      'driver/call-limits',
      'driver/service-time',
      'driver/write-attempts',
    ]),
    ...exceptions('spreads an index over shards, because one partition has a limit', [
      'shards/shard-count',
      'shards/shard-walks',
      'shards/state-index',
    ]),
    history: 'keeps expired records in the same table',
    items: 'is what `columns` is in a SQL store',
    moves: 'decides in JavaScript, and writes on condition that the item has not changed',
    'request-checks': 'rejects values that the table cannot hold',
    results: 'stores large results in separate items',
    rows: 'runs the rows of a call one by one',
    sightings: 'counts leases by the clock of this process',
    'table-definition': 'is what `migrations` is in a SQL store',
  },
}

/** The files of a store that its kind does not have, and those that it lacks. */
function differencesOf(store: string, expected: readonly string[]): string[] {
  const folder = `src/stores/${store}/`
  const own = sources
    .filter((file) => file.startsWith(folder))
    .map((file) => file.slice(folder.length, -'.ts'.length))
  const extra = own.filter((file) => !expected.includes(file))
  return [...extra, ...expected.filter((file) => !own.includes(file))].toSorted()
}

describe('folders', () => {
  it.each(Object.entries(SQL_EXCEPTIONS))('%s has the files of a SQL store', (store, reasons) => {
    expect(differencesOf(store, SQL_FILES)).toEqual(Object.keys(reasons).toSorted())
  })

  it.each(Object.entries(OTHER_EXCEPTIONS))('%s has the files of a store', (store, reasons) => {
    expect(differencesOf(store, SHARED_FILES)).toEqual(Object.keys(reasons).toSorted())
  })

  it('folders have at most twenty-two files on one level', () => {
    const sizes = Map.groupBy(code, (file) => dirname(file))
    const large = [...sizes].filter(([, within]) => within.length > 22)
    expect(large.map(([folder, within]) => `${folder}: ${within.length}`)).toEqual([])
  })
})

// Words of a private dialect. docs/concepts/glossary.md has the words of the domain.
const BANNED_WORDS = new RegExp(
  [
    /\b(?:some|no|any|every)body\b/,
    /\b(?:who|whom|what|which)ever\b/,
    /\bthose who\b/,
    /\bits like\b/,
    /\bof (?:(?:its|their|our) own|ours)\b/,
    /\bas often as (?:it|they) may\b/,
    /\bg(?:o|oes|one) on with\b/,
    /\bwill not do\b/,
  ]
    .map(({ source }) => source)
    .join('|'),
  'i',
)

/** A comment names its subject first. */
const BARE_PRONOUN = /^(?:It|Its|They|Their|What|Those|These|Whose|Who)\b/

describe('prose', () => {
  it('comments, messages, titles and docs have none of the banned words', () => {
    const texts = files.filter((file) => /\.(?:ts|md)$/.test(file) && file !== 'test/tidy.test.ts')
    expect(textMatching(texts, BANNED_WORDS)).toEqual([])
  })

  it('no comment in src opens with a bare pronoun', () => {
    const faults = sources.flatMap((file) =>
      commentsOf(read(file))
        .filter(({ text }) => BARE_PRONOUN.test(text))
        .map(({ line, text }) => `${file}:${line}: ${text}`),
    )
    expect(faults).toEqual([])
  })
})

describe('package.json', () => {
  const manifest = JSON.parse(read('package.json')) as Record<string, Record<string, unknown>>

  // A new dependency is a decision: it gets a line here, and its reason in the commit.
  const ALLOWED: Readonly<Record<string, readonly string[]>> = {
    dependencies: ['structured-headers'],
    peerDependencies: [
      '@aws-sdk/client-dynamodb',
      '@nestjs/common',
      '@nestjs/core',
      'express',
      'fastify',
      'hono',
      'ioredis',
      'koa',
      'mysql2',
      'pg',
      'postgres',
      'redis',
      'rxjs',
    ],
    devDependencies: [
      '@arethetypeswrong/cli',
      '@aws-sdk/client-dynamodb',
      '@fastify/compress',
      '@fastify/cors',
      '@fastify/multipart',
      '@hono/node-server',
      '@koa/router',
      '@nats-io/jetstream',
      '@nats-io/transport-node',
      '@nestjs/common',
      '@nestjs/core',
      '@nestjs/platform-express',
      '@nestjs/platform-fastify',
      '@prisma/adapter-pg',
      '@prisma/client',
      '@types/compression',
      '@types/express',
      '@types/koa',
      '@types/koa-bodyparser',
      '@types/koa-compress',
      '@types/multer',
      '@types/node',
      '@types/pg',
      '@types/ws',
      'ajv',
      'amqplib',
      'axios',
      'axios-retry',
      'canonicalize',
      'compression',
      'drizzle-orm',
      'dynalite',
      'express',
      'express4',
      'fast-check',
      'fastify',
      'got',
      'hono',
      'ioredis',
      'knex',
      'koa',
      'koa-bodyparser',
      'koa-compress',
      'koa2',
      'ky',
      'kysely',
      'multer',
      'mysql2',
      'node',
      'oxfmt',
      'oxlint',
      'oxlint-tsgolint',
      'pg',
      'postgres',
      'publint',
      'rate-limiter-flexible',
      'redis',
      'reflect-metadata',
      'rxjs',
      'stripe',
      'typescript',
      'undici',
      'valibot',
      'vitest',
      'ws',
      'zod',
    ],
    optionalDependencies: [],
    bundleDependencies: [],
  }

  it.each(Object.entries(ALLOWED))('package.json has exactly the allowed %s', (group, allowed) => {
    expect(Object.keys(manifest[group] ?? {}).toSorted()).toEqual(allowed)
  })

  it('package.json makes every peer optional', () => {
    const peers = Object.keys(manifest['peerDependencies'] ?? {})
    const optional = Object.fromEntries(peers.map((name) => [name, { optional: true }]))
    expect(manifest['peerDependenciesMeta']).toEqual(optional)
  })

  it('package.json exports what tsconfig.json resolves to the sources', () => {
    const exported = Object.entries(manifest['exports'] ?? {}).flatMap(([subpath, target]) => {
      if (typeof target === 'string') return []
      const built = (target as { default: string }).default
      const source = built.replace('/dist/', '/src/').replace(/\.js$/, '.ts')
      return [[posix.join('oncekey', subpath), [source]]]
    })
    const { compilerOptions } = JSON.parse(withoutComments(read('tsconfig.json'))) as {
      compilerOptions: { paths: unknown }
    }
    expect(compilerOptions.paths).toEqual(Object.fromEntries(exported))
  })

  it('the lock file covers every platform', () => {
    // npm drops what its registry does not have (yet), and `npm ci` then fails everywhere.
    const { packages } = JSON.parse(read('package-lock.json')) as {
      packages: Record<string, { optionalDependencies?: Record<string, string> }>
    }
    const locked = new Set(Object.keys(packages).map((path) => path.split('node_modules/').at(-1)))
    const missing = Object.entries(packages).flatMap(([path, { optionalDependencies = {} }]) =>
      Object.keys(optionalDependencies)
        .filter((name) => !locked.has(name))
        .map((name) => `${path} wants ${name}`),
    )
    expect(missing).toEqual([])
  })

  it('the lock file has no address of a registry', () => {
    // npm then asks the registry of whoever installs, and a mirror's address stays private.
    expect(textMatching(['package-lock.json'], /"resolved": "(?!file:|test\/)/)).toEqual([])
  })
})

interface Import {
  readonly name: string
  readonly asType: boolean
}

const FROM = /\b(?:import|export)\s+(type\b)?[^'";]*?\bfrom\s*['"]([^'"]+)['"]/g
const CALLED = /\b(?:import|require|getBuiltinModule)\s*\(?\s*['"]([^'"]+)['"]/g

function importsOf(file: string): Import[] {
  const text = withoutComments(read(file))
  const from = [...text.matchAll(FROM)].map(([, type, name]) => {
    return { name: name!, asType: type !== undefined }
  })
  const called = [...text.matchAll(CALLED)].map(([, name]) => ({ name: name!, asType: false }))
  return [...from, ...called]
}

/** The folder of src/ that a file belongs to; a file directly in src/ stands for itself. */
function layerOf(file: string): string {
  return file.split('/')[1]!
}

/** As in `MAY_IMPORT`: `stores/kit` is not a store, and has a name of its own there. */
function placeOf(file: string): string {
  return file.startsWith('src/stores/kit/') ? 'stores/kit' : layerOf(file)
}

/** What may import itself freely: a folder of src/, and each store on its own. */
function unitOf(file: string): string {
  const [, layer, name] = file.split('/')
  return layer === 'stores' ? `${layer}/${name}` : layer!
}

function codeMatching(among: readonly string[], pattern: RegExp): string[] {
  return among.flatMap((file) => linesMatching(file, withoutComments(read(file)), pattern))
}

function textMatching(among: readonly string[], pattern: RegExp): string[] {
  return among.flatMap((file) => linesMatching(file, read(file), pattern))
}

function linesMatching(file: string, text: string, pattern: RegExp): string[] {
  return text
    .split('\n')
    .flatMap((line, index) => (pattern.test(line) ? [`${file}:${index + 1}: ${line.trim()}`] : []))
}

/** Comments become blanks, lines stay where they are. Strings are stepped over, not into. */
function withoutComments(text: string): string {
  const token = /'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|`(?:\\.|[^`\\])*`|\/\*[^]*?\*\/|\/\/.*/g
  return text.replace(token, (found) =>
    found.startsWith('/') ? found.replace(/[^\n]/g, ' ') : found,
  )
}

function read(file: string): string {
  return readFileSync(join(root, file), 'utf8')
}

/** What a clone holds: everything but what .gitignore names. Works without git, too. */
function walk(folder: string): string[] {
  return readdirSync(join(root, folder), { withFileTypes: true }).flatMap((entry) => {
    const path = posix.join(folder, entry.name)
    if (IGNORED.includes(basename(path)) || /\.(tgz|log)$/.test(path)) return []
    return entry.isDirectory() ? walk(path) : [path]
  })
}

/** The first line of each comment. */
function commentsOf(text: string): { readonly line: number; readonly text: string }[] {
  const lines = text.split('\n')
  const isComment = (line: string | undefined) => /^\s*(?:\/\/|\/?\*)/.test(line ?? '')
  return lines
    .map((line, index) => ({ line, index }))
    .filter(({ line, index }) => isComment(line) && !isComment(lines[index - 1]))
    .map(({ line, index }) => {
      const first = /^\s*\/\*\*?\s*$/.test(line) ? (lines[index + 1] ?? '') : line
      return { line: index + 1, text: first.replace(/^\s*(?:\/\/|\/?\*+)\s?/, '').trim() }
    })
}
