/**
 * Prisma without its code generator. The generator only makes configuration for the runtime, which
 * runs statements and transactions without a model. Loaded without its type declarations, because
 * they describe generated models.
 */
import { createRequire } from 'node:module'
import { onTestFinished } from 'vitest'

export interface PrismaTransaction {
  $executeRawUnsafe(sql: string, ...values: unknown[]): Promise<number>
}

export interface PrismaClient extends PrismaTransaction {
  $transaction<Result>(
    body: (tx: PrismaTransaction) => Promise<Result>,
    options?: { readonly isolationLevel: 'RepeatableRead' | 'Serializable' },
  ): Promise<Result>
  $disconnect(): Promise<void>
}

type ClientClass<Options> = new (options: Options) => PrismaClient

const require = createRequire(import.meta.url)
const COMPILER = '@prisma/client/runtime/query_compiler_small_bg.postgresql'

const { getPrismaClient } = require('@prisma/client/runtime/client') as {
  getPrismaClient: (config: object) => ClientClass<{ readonly adapter: unknown }>
}
const { PrismaPg } = require('@prisma/adapter-pg') as {
  PrismaPg: new (options: { readonly connectionString: string }) => unknown
}

/** Declared here, because the type check does not include the types of browsers. */
const { WebAssembly } = globalThis as unknown as {
  WebAssembly: { readonly Module: new (bytes: Uint8Array) => object }
}

const Client = getPrismaClient({
  activeProvider: 'postgresql',
  inlineSchema: 'datasource db {\n  provider = "postgresql"\n}\n',
  runtimeDataModel: { models: {}, enums: {}, types: {} },
  // Encodes three counts of zero.
  parameterizationSchema: { strings: [], graph: 'AAAA' },
  previewFeatures: [],
  clientVersion: '7',
  engineVersion: '7',
  compilerWasm: {
    importName: './query_compiler_small_bg.js',
    getRuntime: async () => require(`${COMPILER}.js`) as object,
    getQueryCompilerWasmModule: async () => {
      const { wasm } = require(`${COMPILER}.wasm-base64.js`) as { wasm: string }
      return new WebAssembly.Module(Buffer.from(wasm, 'base64'))
    },
  },
})

/** Connects to a PostgreSQL server until the test ends. */
export function prismaClient(url: string): PrismaClient {
  const client = new Client({ adapter: new PrismaPg({ connectionString: url }) })
  onTestFinished(() => client.$disconnect())
  return client
}
