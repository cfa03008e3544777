/**
 * A DynamoDB for one test file: dynalite in a separate process, on a free port, with its data in a
 * scratch folder. Tests may kill it and start it again.
 */
import {
  DynamoDB,
  ResourceNotFoundException,
  type DynamoDBClientConfig,
} from '@aws-sdk/client-dynamodb'
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { tableDefinition } from '../../src/stores/dynamodb/index.ts'
import { freePort, untilAnswering } from './programs.ts'

export interface DynamoServer {
  readonly endpoint: string
  /** Creates the table of the store, under a new name by default. */
  readonly table: (name?: string) => Promise<string>
  readonly stopAtOnce: () => Promise<void>
  readonly start: () => Promise<void>
  /** Ends the server and removes its folder, or the tables created on a foreign server. */
  readonly close: () => Promise<void>
}

export interface DynaliteOptions {
  /** Starts a private server. Its test may kill it, so its data is on the disk. */
  readonly private?: boolean
  /** Refused writes return the existing item, as in DynamoDB. */
  readonly returnsItems?: boolean
}

/** Config of a client for a test server, which does not check credentials. */
export function clientConfig(endpoint: string): DynamoDBClientConfig {
  return {
    endpoint,
    region: 'eu-central-1',
    credentials: { accessKeyId: 'test', secretAccessKey: 'test' },
  }
}

/**
 * Uses the server of the environment if there is one, otherwise a private one. A test that kills
 * its server always asks for a private one.
 */
export async function startDynalite(options: DynaliteOptions = {}): Promise<DynamoServer> {
  const url = process.env['ONCEKEY_TEST_DYNAMODB_URL']
  if (url !== undefined && options.private !== true) return foreignServer(url)
  return privateServer(options)
}

function foreignServer(endpoint: string): DynamoServer {
  const client = new DynamoDB(clientConfig(endpoint))
  const made: string[] = []
  const refuse = () => Promise.reject(new Error('only a private server may be stopped'))
  return {
    endpoint,
    start: refuse,
    stopAtOnce: refuse,
    async table(name) {
      const table = await makeTable(client, name)
      made.push(table)
      return table
    },
    async close() {
      for (const TableName of made) {
        await client.deleteTable({ TableName }).catch((error: unknown) => {
          // The test has already removed the table.
          if (!(error instanceof ResourceNotFoundException)) throw error
        })
      }
      client.destroy()
    },
  }
}

async function privateServer(options: DynaliteOptions): Promise<DynamoServer> {
  const program = join(import.meta.dirname, 'dynalite-program.ts')
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-dynalite-'))
  const port = await freePort()
  const endpoint = `http://127.0.0.1:${port}`
  const client = new DynamoDB(clientConfig(endpoint))
  // In memory if no test kills the server: that is twice as fast.
  const place = options.private === true ? ['--path', folder] : []
  const likeness = options.returnsItems === true ? ['--returnsItems'] : []
  let server: ChildProcess | undefined

  const start = async () => {
    const timing = ['create', 'delete', 'update'].flatMap((what) => [`--${what}TableMs`, '0'])
    const args = [
      program,
      '--host',
      '127.0.0.1',
      '--port',
      `${port}`,
      ...place,
      ...likeness,
      ...timing,
    ]
    server = spawn(process.execPath, args, { stdio: 'ignore' })
    await untilAnswering(() => client.listTables(), server)
  }
  const stopAtOnce = async () => {
    if (server === undefined || server.exitCode !== null || server.signalCode !== null) return
    const ended = once(server, 'exit')
    server.kill('SIGKILL')
    await ended
  }
  const leave = () => void server?.kill('SIGKILL')
  process.once('exit', leave)
  await start()
  return {
    endpoint,
    start,
    stopAtOnce,
    table: (name) => makeTable(client, name),
    async close() {
      client.destroy()
      await stopAtOnce()
      process.removeListener('exit', leave)
      rmSync(folder, { recursive: true, force: true })
    },
  }
}

async function makeTable(
  client: DynamoDB,
  name = `oncekey_${crypto.randomUUID().slice(0, 8)}`,
): Promise<string> {
  const { createTable } = tableDefinition({ table: name })
  await client.createTable(createTable)
  for (let tries = 0; tries < 600; tries++) {
    const { Table: table } = await client.describeTable({ TableName: name })
    if (table?.TableStatus === 'ACTIVE') return name
    await new Promise((resolve) => setTimeout(resolve, 5))
  }
  throw new Error(`the table ${name} did not become active`)
}
