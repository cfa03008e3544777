// Takes about 36 s.
/**
 * A rolling deploy, its rollback and a second deploy, with real nodes of two versions on one
 * database: the packed version of commit 002247e, and the current build.
 */
import { DatabaseSync } from 'node:sqlite'
import mysql from 'mysql2/promise'
import pg from 'pg'
import { afterAll, beforeAll, expect, it, onTestFinished } from 'vitest'
import { startMariadb } from '../servers/mariadb.ts'
import { startPostgres } from '../servers/postgres.ts'
import { scratchFolder } from '../stores/scratch-folder.ts'
import { installVersions, startNode, type Installed, type Version } from './installed.ts'
import { Load, type Answer } from './load.ts'

type Row = Readonly<Record<string, unknown>>

interface Database {
  readonly engine: string
  readonly place: string
  readonly rows: (sql: string) => Promise<Row[]>
}

const TABLE = 'CREATE TABLE effect (idempotency_key VARCHAR(99) NOT NULL, node VARCHAR(99))'

const isFull = process.env['ONCEKEY_TEST_FULL'] === '1'
/** The number of keys that get a reply in each stage of the deploy. */
const STAGE_KEYS = isFull ? 300 : 30

const DATABASES: Readonly<Record<string, () => Promise<Database>>> = {
  sqlite: async () => {
    const folder = scratchFolder()
    onTestFinished(folder.remove)
    const place = folder.file('service.db')
    const app = new DatabaseSync(place, { timeout: 5_000 })
    onTestFinished(() => app.close())
    app.exec(TABLE)
    return { engine: 'sqlite', place, rows: async (sql) => app.prepare(sql).all() }
  },
  postgres: async () => {
    const server = await startPostgres()
    onTestFinished(server.close)
    const place = await server.database()
    const app = new pg.Pool({ connectionString: place, max: 1 })
    onTestFinished(() => app.end())
    await app.query(TABLE)
    return { engine: 'postgres', place, rows: async (sql) => (await app.query<Row>(sql)).rows }
  },
  ...(isFull && {
    mysql: async () => {
      const server = await startMariadb()
      onTestFinished(server.close)
      const place = await server.database()
      const app = mysql.createPool({ uri: place, connectionLimit: 1 })
      onTestFinished(() => app.end())
      await app.query(TABLE)
      return {
        engine: 'mysql',
        place,
        rows: async (sql) => (await app.query(sql))[0] as Row[],
      }
    },
  }),
}

let installed: Installed
beforeAll(() => {
  installed = installVersions()
})
afterAll(() => installed.remove())

/** A service whose nodes start and stop under load. */
function setup(database: Database) {
  const load = new Load()
  const delivered = new Map<string, number>()
  let onDelivery = () => {}
  const start = async (version: Version, name: string) => {
    const node = await startNode({
      installed,
      version,
      name: `${version} ${name}`,
      database,
      onDelivered: (key) => {
        delivered.set(key, (delivered.get(key) ?? 0) + 1)
        onDelivery()
      },
    })
    onTestFinished(node.kill)
    load.nodes.push(node)
    return node
  }
  const stop = async (node: Awaited<ReturnType<typeof start>>) => {
    await load.takeOut(node)
    await node.stop()
  }
  const allDelivered = (keys: readonly string[]) =>
    new Promise<void>((resolve) => {
      onDelivery = () => {
        if (keys.every((key) => delivered.has(key))) resolve()
      }
      onDelivery()
    })
  return { load, start, stop, delivered, allDelivered }
}

it.each(Object.keys(DATABASES))(
  'runs each key once on %s while two versions share the database, forward and back',
  async (name) => {
    const database = await DATABASES[name]!()
    const { load, start, stop, delivered, allDelivered } = setup(database)
    const first = await start('old', 'one')
    const second = await start('old', 'two')
    load.start()
    await load.more(STAGE_KEYS)

    // Forward: a new node migrates under load, and then works beside the old ones.
    const third = await start('new', 'three')
    await load.more(STAGE_KEYS)
    // An old node restarts in the middle of the deploy: it starts on the migrated tables.
    await stop(first)
    const fourth = await start('old', 'four')
    await load.more(STAGE_KEYS)
    // New nodes replace the old ones, and the new version runs alone.
    const fifth = await start('new', 'five')
    await stop(second)
    await stop(fourth)
    await load.more(STAGE_KEYS)

    // Back: an old node starts, the new ones stop, and the old version runs alone.
    const sixth = await start('old', 'six')
    await stop(third)
    await stop(fifth)
    await load.more(STAGE_KEYS)
    // Forward again.
    const seventh = await start('new', 'seven')
    await load.more(STAGE_KEYS)
    await load.stop()

    const repeated = await replayAll(load, [sixth, seventh])
    await allDelivered(load.keys.filter((key) => key.startsWith('transaction')))
    await stop(sixth)
    await stop(seventh)
    expectOneReplyEach(load, repeated)
    expect((await effectsIn(database)).toSorted()).toEqual(load.keys.toSorted())
    await expectAllSettled(database, load.keys)
    expect(delivered.size).toBe(load.keys.filter((key) => key.startsWith('transaction')).length)
  },
  120_000,
)

/** Sends each key again to a node of each version. */
async function replayAll(load: Load, nodes: Load['nodes']): Promise<Answer[]> {
  const answers: Answer[] = []
  for (const key of load.keys) {
    answers.push(...(await Promise.all(nodes.map((node) => load.send(key, node)))))
  }
  return answers
}

/** The version that answers, and the version that made the reply. */
type Pairing = `${Version} has the reply of ${Version}`

/**
 * Expects the same bytes in every 2xx of a key. An old node cannot read the replies of a newer
 * codec: it answers `idempotency_reply_unreadable`, and runs nothing.
 */
function expectOneReplyEach(load: Load, repeated: readonly Answer[]): void {
  const replies = new Map(load.answers.filter(isReply).map(({ key, body }) => [key, body]))
  const kindOf = (answer: Answer): string => {
    const { key, version, status, body } = answer
    const code = status === 201 ? undefined : codeOf(body)
    if (body === replies.get(key)) return 'the reply'
    if (code === 'idempotency_key_in_progress') return 'in progress'
    const isNewer = version === 'old' && authorOf(replies.get(key)!) === 'new'
    if (code === 'idempotency_reply_unreadable' && isNewer) return 'a reply of a newer codec'
    return `${status} from an ${version} node: ${body}`
  }
  const allowed = ['the reply', 'in progress', 'a reply of a newer codec']
  const others = load.answers.map(kindOf).filter((kind) => !allowed.includes(kind))
  expect(others).toEqual([])

  const kinds: Partial<Record<Pairing, Set<string>>> = {}
  for (const answer of repeated) {
    const author = authorOf(replies.get(answer.key)!)
    const pairing: Pairing = `${answer.version} has the reply of ${author}`
    kinds[pairing] = (kinds[pairing] ?? new Set()).add(kindOf(answer))
  }
  const readable = new Set(['the reply'])
  expect(kinds).toEqual({
    'old has the reply of old': readable,
    'new has the reply of old': readable,
    'new has the reply of new': readable,
    // Readable or not, depending on the codec that the new version writes.
    'old has the reply of new': expect.toSatisfy(({ size }: Set<string>) => size === 1),
  })
}

const isReply = ({ status }: Answer) => status === 201

const codeOf = (body: string) => (JSON.parse(body) as { code?: string }).code

const authorOf = (body: string) =>
  (JSON.parse(body) as { by: string }).by.startsWith('old') ? 'old' : 'new'

async function effectsIn({ rows }: Database): Promise<string[]> {
  return (await rows('SELECT idempotency_key FROM effect')).map((row) =>
    String(row['idempotency_key']),
  )
}

/** Expects all records to be completed, and the message of each transaction to be relayed. */
async function expectAllSettled({ rows }: Database, keys: readonly string[]): Promise<void> {
  const count = async (sql: string) =>
    Object.fromEntries((await rows(sql)).map((row) => [String(row['state']), Number(row['count'])]))
  const records = 'SELECT state, count(*) AS count FROM oncekey_record GROUP BY state'
  expect(await count(records)).toEqual({ completed: keys.length })
  const messages = 'SELECT state, count(*) AS count FROM oncekey_record_message GROUP BY state'
  const transactions = keys.filter((key) => key.startsWith('transaction'))
  expect(await count(messages)).toEqual({ done: transactions.length })
}
