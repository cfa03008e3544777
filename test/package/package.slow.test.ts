// Takes about 44 s.
import { execFileSync } from 'node:child_process'
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { stripTypeScriptTypes } from 'node:module'
import { tmpdir } from 'node:os'
import { delimiter, join, sep } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'

// Tests the package as a user gets it: a packed tarball, installed into an empty folder, loaded by
// real Node processes and by the compiler. The build, too, is made in the scratch folder.

const root = join(import.meta.dirname, '..', '..')
const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
  files: string[]
  exports: Record<string, string | { types: string; default: string }>
}
const subpaths = Object.entries(manifest.exports)
  .filter(([, target]) => typeof target !== 'string')
  .map(([subpath]) => subpath.replace('.', 'oncekey'))

/** Exports for handlers in every adapter, and for a startup check in adapters with routes. */
const HANDLER_NAMES = ['idempotencyOf'] as const
const AUDIT_NAMES = ['auditRoutes', 'requireProtected'] as const

/** Exported values. Removing one is a breaking change. */
const NAMES: Readonly<Record<string, readonly string[]>> = {
  oncekey: [
    'createEngine',
    'currentIdempotency',
    'encodeAbandonedReply',
    'encodeHttpReply',
    'memoryStore',
    'singleTenant',
    'EXPOSED_HEADERS',
    'OncekeyError',
    'InvalidOptionsError',
    'StoreFailedError',
    'NotExecutedError',
    'OutcomeUnknownError',
    'isOncekeyError',
  ],
  'oncekey/cached': ['cachedStore', 'memoryCache', 'redisCache'],
  'oncekey/durable': ['defineOperation', 'createWorker', 'operationPolicy', 'ajvSchema'],
  'oncekey/dynamodb': ['dynamodbStore', 'tableDefinition'],
  'oncekey/encryption': ['aesKeyring', 'envelopeKeyring', 'keyIdOf'],
  'oncekey/express': [
    'idempotency',
    'idempotencyErrors',
    'keepRawBody',
    ...HANDLER_NAMES,
    ...AUDIT_NAMES,
  ],
  'oncekey/fastify': ['idempotency', ...HANDLER_NAMES, ...AUDIT_NAMES],
  'oncekey/fetch': ['idempotency', 'withIdempotency', ...HANDLER_NAMES],
  'oncekey/hono': ['idempotency', ...HANDLER_NAMES, ...AUDIT_NAMES],
  'oncekey/koa': ['idempotency', ...HANDLER_NAMES, ...AUDIT_NAMES],
  'oncekey/mysql': ['mysqlStore', 'migrationSql'],
  'oncekey/nest': [
    'IDEMPOTENCY_ENGINE',
    'IdempotencyContext',
    'IdempotencyModule',
    'Idempotent',
    ...HANDLER_NAMES,
    ...AUDIT_NAMES,
  ],
  'oncekey/node': ['idempotency', 'withIdempotency', ...HANDLER_NAMES],
  'oncekey/openapi': ['describeIdempotency'],
  'oncekey/postgres': ['postgresStore', 'migrationSql'],
  'oncekey/redis': ['redisStore'],
  'oncekey/sqlite': ['sqliteStore'],
  'oncekey/store': ['MOVES', 'RECORD_STATES'],
  'oncekey/testing': ['FakeClock', 'storeCases', 'adapterCases'],
}

const HANDLER_TYPES = ['HandlerContext', 'ReplyInit', 'RouteOptions<object>'] as const
const AUDIT_TYPES = ['AuditedRoute', 'RouteAudit'] as const

/** Exported types, with their type arguments. */
const TYPES: Readonly<Record<string, readonly string[]>> = {
  oncekey: [
    'Engine',
    'Encryption',
    'EncryptionContext',
    'EncryptionPurpose',
    'EncryptionSubject',
    'EngineEvent',
    'FingerprintSecret',
    'ReplyInit',
    'GuardOptions<object>',
    'HandlerContext',
    'HttpReply',
    'Profile',
    'RecordView',
  ],
  'oncekey/store': ['DurableStore', 'Store', 'StoredRecord'],
  'oncekey/encryption': [
    'AesKeyring',
    'AesKeyringOptions',
    'EnvelopeCacheOptions',
    'EnvelopeKeyring',
    'EnvelopeKeyringOptions',
    'KeyServiceCall',
  ],
  'oncekey/express': [
    'IdempotencyOptions',
    'ExpressAuditOptions',
    'IdempotencyMiddleware',
    ...HANDLER_TYPES,
    ...AUDIT_TYPES,
  ],
  'oncekey/fastify': [
    'IdempotencyOptions',
    'AuditOptions',
    'RouteIdempotency',
    ...HANDLER_TYPES,
    ...AUDIT_TYPES,
  ],
  'oncekey/fetch': ['IdempotencyOptions', 'WebHandlerContext', ...HANDLER_TYPES],
  'oncekey/hono': [
    'IdempotencyOptions',
    'AuditOptions',
    'IdempotencyMiddleware',
    'WebHandlerContext',
    ...HANDLER_TYPES,
    ...AUDIT_TYPES,
  ],
  'oncekey/koa': [
    'IdempotencyOptions',
    'KoaAuditOptions',
    'IdempotencyMiddleware',
    ...HANDLER_TYPES,
    ...AUDIT_TYPES,
  ],
  'oncekey/nest': [
    'IdempotencyOptions',
    'IdempotencyModuleAsyncOptions',
    'AuditOptions',
    'NestRequest',
    ...HANDLER_TYPES,
    ...AUDIT_TYPES,
  ],
  'oncekey/node': ['IdempotencyOptions', 'NodeListener', ...HANDLER_TYPES],
  'oncekey/durable': [
    'Effect',
    'EffectCall<object>',
    'Finding',
    'Operation',
    'OperationContext',
    'Schema<object>',
    'Worker',
    'WorkerOptions',
  ],
  'oncekey/openapi': ['OpenApiOptions', 'OperationFilter'],
}

/** The current size with source maps, and an eighth more. A bundled peer would exceed this. */
const UNPACKED_BYTES_MAX = 10 * 1024 * 1024

const scratch = mkdtempSync(join(tmpdir(), 'oncekey-package-'))
const built = join(scratch, 'built')
const consumer = join(scratch, 'consumer')
const installed = join(consumer, 'node_modules', 'oncekey')
const smoke = join(scratch, 'smoke')

/** Peers that a subpath imports at run time, because it uses their decorators and modules. */
const NEEDED_PEERS = ['@nestjs', 'rxjs'] as const

/** Frameworks besides Express, and the packages of this repository that their programs need. */
const FRAMEWORKS = ['node', 'fetch', 'hono', 'koa', 'fastify', 'nest'] as const
const FRAMEWORK_PACKAGES = ['@hono', '@nestjs', 'fastify', 'hono', 'koa', 'reflect-metadata']

let installedNames: readonly string[] = []

beforeAll(() => {
  mkdirSync(built)
  mkdirSync(consumer)
  run(bin('tsc'), ['-p', join(root, 'tsconfig.build.json'), '--outDir', join(built, 'dist')], root)
  for (const file of ['package.json', ...manifest.files.filter((name) => name !== 'dist')]) {
    cpSync(join(root, file), join(built, file))
  }
  run('npm', ['pack', '--pack-destination', scratch], built)
  const tarball = readdirSync(scratch).find((name) => name.endsWith('.tgz'))!
  writeFileSync(join(consumer, 'package.json'), '{ "private": true }')
  const quiet = ['--prefer-offline', '--no-audit', '--no-fund']
  run('npm', ['install', ...quiet, join(scratch, tarball)], consumer)
  installedNames = readdirSync(join(consumer, 'node_modules'))
  for (const peer of NEEDED_PEERS) link(peer)
  prepareSmoke()
}, 240_000)

afterAll(() => {
  rmSync(scratch, { recursive: true, force: true })
})

describe('the tarball', () => {
  it('contains the built files, manifest, license, README and changelog, and nothing else', () => {
    const files = filesIn(installed)
    const allowed = /^(dist\/.+\.(js|d\.ts|js\.map)|package\.json|LICENSE|(README|CHANGELOG)\.md)$/
    expect(files.filter((file) => !allowed.test(file))).toEqual([])
    expect(files).toEqual(expect.arrayContaining(['package.json', 'LICENSE', 'README.md']))
  })

  it('unpacks to less than the limit', () => {
    const bytes = filesIn(installed).map((file) => statSync(join(installed, file)).size)
    expect(bytes.reduce((sum, size) => sum + size, 0)).toBeLessThan(UNPACKED_BYTES_MAX)
  })

  it('has a file for each subpath, and reaches each file from a subpath', () => {
    const script = join(root, 'scripts', 'check-exports.ts')
    expect(run(process.execPath, [script, installed], root)).toContain(
      `${subpaths.length} subpaths`,
    )
  })

  it('installs no other package than structured-headers', () => {
    const packages = installedNames.filter((name) => !name.startsWith('.'))
    expect(packages).toEqual(['oncekey', 'structured-headers'])
  })
})

const newest: Runtime = { node: process.execPath, version: process.versions.node }
const older = findOlderNode()
const others = older.length > 0 ? '' : ' (no Node below 22 was found)'

describe(`the installed package${others}`, () => {
  describe.each([newest, ...older])('on Node $version', ({ node }) => {
    it.each(subpaths)('exports the names of %s to import', (name) => {
      const program = `console.log(JSON.stringify(Object.keys(await import('${name}'))))`
      expectNames(name, JSON.parse(evaluate(node, program)) as string[])
    })

    it.each(subpaths)('exports the names of %s to require', (name) => {
      const program = `console.log(JSON.stringify(Object.keys(require('${name}'))))`
      const out = run(node, ['--input-type=commonjs', '-e', program], consumer)
      expectNames(name, JSON.parse(out) as string[])
    })
  })

  describe.each([newest, ...older])('on Node $version', ({ node }) => {
    it.each(['express', 'express4'])('protects an API on %s', (version) => {
      const checks = ['json', 'nothing', 'write-end', 'stream', 'big', 'disconnect']
      const out = run(node, ['--no-warnings', 'main.mjs'], join(smoke, version))
      expect(out.trimEnd().split('\n')).toEqual(checks)
    })

    it.each(FRAMEWORKS)('protects an API on %s', (name) => {
      const out = run(node, ['--no-warnings', 'main.mjs', name], join(smoke, 'frameworks'))
      expect(out).toBe(`${name}\n`)
    })
  })

  it('opens a SQLite store', () => {
    const path = JSON.stringify(join(scratch, 'newest.db'))
    const program = `
      import { sqliteStore } from 'oncekey/sqlite'
      const store = sqliteStore({ path: ${path} })
      await store.close?.()
      console.log(store.name)`
    expect(evaluate(newest.node, program)).toBe('sqlite\n')
  })

  it.each(older)('says on Node $version in one line that SQLite needs 22.13', ({ node }) => {
    const path = JSON.stringify(join(scratch, 'older.db'))
    const program = `
      import { sqliteStore } from 'oncekey/sqlite'
      try { sqliteStore({ path: ${path} }) } catch (error) { console.log(error.message) }`
    const lines = evaluate(node, program).trimEnd().split('\n')
    expect(lines).toEqual([expect.stringContaining('Node 22.13')])
  })
})

describe('a TypeScript program in strict mode', () => {
  it.each([
    { module: 'nodenext', moduleResolution: 'nodenext' },
    { module: 'esnext', moduleResolution: 'bundler' },
  ])('compiles against every subpath with moduleResolution $moduleResolution', (resolution) => {
    const folder = join(consumer, resolution.moduleResolution)
    mkdirSync(folder)
    linkTypes()
    const compilerOptions = {
      ...resolution,
      target: 'es2022',
      lib: ['es2022'],
      types: ['node'],
      strict: true,
      exactOptionalPropertyTypes: true,
      skipLibCheck: false,
      // The types of Koa import these. Beside Express 5 they would resolve to a newer version,
      // which has its own types.
      paths: { 'content-disposition': ['../node_modules/@types/content-disposition'] },
      noEmit: true,
    }
    writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify({ compilerOptions }))
    writeFileSync(join(folder, 'package.json'), '{ "type": "module" }')
    writeFileSync(join(folder, 'main.ts'), typedProgram())
    expect(run(bin('tsc'), ['-p', folder], folder)).toBe('')
  })
})

function expectNames(subpath: string, names: readonly string[]): void {
  expect(NAMES, `${subpath} has no line in NAMES`).toHaveProperty([subpath])
  expect(names).toEqual(expect.arrayContaining([...NAMES[subpath]!]))
  expect(names).not.toContain('default')
}

/**
 * Uses each name as an object, and as a number, which must be an error: a declaration that does not
 * resolve is `any`, and `any` satisfies `number`, too.
 */
function typedProgram(): string {
  const lines = subpaths.flatMap((subpath, index) => [
    `import * as module${index} from '${subpath}'`,
    ...NAMES[subpath]!.flatMap((name) => [
      `module${index}.${name} satisfies object | symbol`,
      '// @ts-expect-error',
      `module${index}.${name} satisfies number`,
    ]),
    ...(TYPES[subpath] ?? []).flatMap((type) => [
      `void ({} as module${index}.${type})`,
      '// @ts-expect-error',
      `void (0 satisfies module${index}.${type})`,
    ]),
  ])
  return lines.join('\n')
}

/** Writes the programs that use the installed package and the frameworks of this repository. */
function prepareSmoke(): void {
  for (const version of ['express', 'express4']) {
    const folder = program(version, 'adapter-smoke.ts')
    linkInto(folder, 'express', join(root, 'node_modules', version))
  }
  const folder = program('frameworks', 'framework-smoke.ts')
  for (const name of FRAMEWORK_PACKAGES) linkInto(folder, name, join(root, 'node_modules', name))
}

/** Makes a folder with a program, its types stripped, and a link to the installed package. */
function program(name: string, source: string): string {
  const folder = join(smoke, name)
  mkdirSync(join(folder, 'node_modules'), { recursive: true })
  const text = readFileSync(join(import.meta.dirname, source), 'utf8')
  writeFileSync(join(folder, 'main.mjs'), stripTypeScriptTypes(text))
  linkInto(folder, 'oncekey', installed)
  return folder
}

function linkInto(folder: string, name: string, target: string): void {
  const path = join(folder, 'node_modules', name)
  if (!existsSync(path)) symlinkSync(target, path, 'junction')
}

/** Links the types of Node and of the frameworks, which TypeScript users have installed. */
function linkTypes(): void {
  for (const name of ['@types', 'fastify', 'hono']) link(name)
}

/** Links a package, or a scope of packages, of this repository into the consumer. */
function link(name: string): void {
  linkInto(consumer, name, join(root, 'node_modules', name))
}

function evaluate(node: string, program: string): string {
  return run(node, ['--input-type=module', '--no-warnings', '-e', program], consumer)
}

interface Runtime {
  readonly node: string
  readonly version: string
}

/** The first Node below 22 on the PATH, apart from the one in devDependencies. */
function findOlderNode(): Runtime[] {
  for (const folder of (process.env['PATH'] ?? '').split(delimiter)) {
    const node = join(folder, process.platform === 'win32' ? 'node.exe' : 'node')
    if (folder.includes(`node_modules${sep}`) || !existsSync(node)) continue
    const version = run(node, ['-p', 'process.versions.node'], scratch).trim()
    if (Number.parseInt(version, 10) < 22) return [{ node, version }]
  }
  return []
}

function filesIn(folder: string): string[] {
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(folder.length + 1))
    .map((path) => path.replaceAll(sep, '/'))
}

function bin(name: string): string {
  return join(root, 'node_modules', '.bin', name)
}

/** Returns the output of a program. Throws an error with all its output if it fails. */
function run(program: string, args: readonly string[], cwd: string): string {
  try {
    return execFileSync(program, args, { cwd, encoding: 'utf8', env: cleanEnv(), stdio: 'pipe' })
  } catch (error) {
    const { stdout, stderr } = error as { stdout: string; stderr: string }
    throw new Error(`${program} ${args.join(' ')} failed:\n${stdout}\n${stderr}`, { cause: error })
  }
}

/** The environment of a user's shell, without the variables that `npm test` and vitest add. */
function cleanEnv(): NodeJS.ProcessEnv {
  const added =
    /^(npm_(package|lifecycle|command|config_local_prefix)|VITEST|NODE_(ENV|OPTIONS|PATH)|INIT_CWD)/
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !added.test(name)))
}
