import { readdirSync, readFileSync } from 'node:fs'
import { basename, join, posix } from 'node:path'
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
// explains it. A folder may always import itself; one store never imports another. Nobody may
// import `testing`.
const MAY_IMPORT: Readonly<Record<string, readonly string[]>> = {
  'index.ts': ['protocol', 'core', 'http', 'adapters', 'stores'],
  protocol: [],
  core: [],
  http: ['core', 'protocol'],
  adapters: ['core', 'protocol', 'http'],
  stores: ['core'],
  durable: ['core', 'protocol', 'http'],
  testing: ['core', 'http'],
}

// Which npm packages and Node modules may be used by the files whose path starts so.
const MAY_USE: Readonly<Record<string, readonly string[]>> = {
  protocol: ['structured-headers'],
  'core/identity.ts': ['node:crypto'],
  http: ['node:async_hooks', 'node:crypto', 'node:util', 'node:zlib'],
  adapters: ['node:http', 'node:stream'],
  'adapters/express': ['express'],
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
  it('follow the direction of the architecture', () => {
    const faults = sources.flatMap((file) => {
      const allowed = MAY_IMPORT[layerOf(file)]
      if (allowed === undefined) return [`${file}: its folder has no line in MAY_IMPORT`]
      return importsOf(file)
        .filter(({ name }) => name.startsWith('.'))
        .map(({ name }) => posix.join(posix.dirname(file), name))
        .filter((target) => unitOf(target) !== unitOf(file) && !allowed.includes(layerOf(target)))
        .map((target) => `${file}: imports ${target}`)
    })
    expect(faults).toEqual([])
  })

  it('name only the packages and Node modules that the folder may use', () => {
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

  it('of the examples are the published ones', () => {
    const faults = code
      .filter((file) => file.startsWith('examples/'))
      .filter((file) => importsOf(file).some(({ name }) => name.includes('/src/')))
    expect(faults).toEqual([])
  })
})

describe('code', () => {
  it('asks the clock for the time', () => {
    const time =
      /\bDate\.now\b|\bnew Date\(\s*\)|\bset(Timeout|Interval|Immediate)\b|\bperformance\./
    const asking = sources.filter((file) => !file.endsWith('clock.ts'))
    expect(codeMatching(asking, time)).toEqual([])
  })

  it('neither prints nor ends the process', () => {
    const pattern = /\bconsole\.\w+|\bprocess\.(exit|abort|stdout|stderr)\b/
    expect(codeMatching(sources, pattern)).toEqual([])
  })

  it('has no default export', () => {
    const own = code.filter((file) => file !== 'vitest.config.ts')
    expect(codeMatching(own, /\bexport default\b|\bas default\b/)).toEqual([])
  })

  it('leaves no test out', () => {
    // Spelt in pieces, here and below, so that this file does not find itself.
    const conditional = ['skip', 'run'].map((word) => `${word}If`).join('|')
    const leftOut = `\\b(it|test|describe)(\\.\\w+)*\\.(skip|only|todo|fails|${conditional})\\b`
    const tests = code
      .filter((file) => file.startsWith('test/'))
      // The runners of cases skip by exact name, each with its reason in the data.
      .filter((file) => !/\/run-[a-z]+-cases\.ts$/.test(file))
    expect(codeMatching(tests, new RegExp(leftOut))).toEqual([])
  })

  it('has no test file in a shared process that listens to it or changes it', () => {
    const config = read('vitest.config.ts')
    const alone = /^test\/(chaos|examples|process|package|simulation)\//
    const shared = code
      .filter((file) => file.startsWith('test/') && file.endsWith('.test.ts'))
      .filter((file) => !alone.test(file) && !config.includes(`'${file}'`))
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
  it('are short enough to read', () => {
    const faults = code
      .map((file) => ({ file, lines: read(file).trimEnd().split('\n').length }))
      .filter(({ file, lines }) => lines > (file.startsWith('test/') ? 600 : 500))
      .map(({ file, lines }) => `${file}: ${lines} lines`)
    expect(faults).toEqual([])
  })

  it('keep to 100 columns', () => {
    // A link cannot be broken in two.
    expect(textMatching(code, /^(?!.*:\/\/).{101,}$/u)).toEqual([])
  })

  it('are named in kebab case, for what they hold', () => {
    const kebab = /^[a-z0-9]+(-[a-z0-9]+)*(\.(test|config|d))?(\.ts)?$/
    const vague = /^(utils?|common|helpers?|types|misc)$/
    const isWellNamed = (part: string): boolean =>
      kebab.test(part) && !part.split(/[-.]/).some((word) => vague.test(word))
    expect(code.filter((file) => !file.split('/').every(isWellNamed))).toEqual([])
  })

  it('have Unix line ends, no trailing space, and end in a newline', () => {
    expect(textMatching(files, /\r|[ \t]$/)).toEqual([])
    expect(files.filter((file) => !read(file).endsWith('\n'))).toEqual([])
  })

  const written = files.filter((file) => file !== 'package-lock.json')

  it('hold no leftover markers', () => {
    const markers = ['TO-DO', 'FIX-ME', 'X-XX', 'HA-CK'].join('|').replaceAll('-', '')
    expect(textMatching(written, new RegExp(`\\b(${markers})\\b`))).toEqual([])
  })

  it('name no machine and no registry', () => {
    const folders = ['work', 'farm', 'root', 'home', 'Users'].join('|')
    const hosts = ['registry-npm', 'deb-debian'].join('|').replaceAll('-', '\\.')
    const machine = new RegExp(`(^|[^\\w.])/(${folders})/|${hosts}`)
    expect(textMatching(written, machine)).toEqual([])
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

  it.each(Object.entries(ALLOWED))('has exactly the allowed %s', (group, allowed) => {
    expect(Object.keys(manifest[group] ?? {}).toSorted()).toEqual(allowed)
  })

  it('makes every peer optional', () => {
    const peers = Object.keys(manifest['peerDependencies'] ?? {})
    const optional = Object.fromEntries(peers.map((name) => [name, { optional: true }]))
    expect(manifest['peerDependenciesMeta']).toEqual(optional)
  })

  it('exports what tsconfig.json resolves to the sources', () => {
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

  it('is locked for every platform', () => {
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

  it('is locked without the address of a registry', () => {
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
