/** Large tables, memory, and several processes, on a separate PostgreSQL. */
import { postgresStore } from '../../src/stores/postgres/index.ts'
import type { Figures } from '../report/results.ts'
import type { Places } from '../run/contract.ts'
import { sleeperOf, type Context, type Line } from '../run/context.ts'
import { fillTable, type Fill } from '../run/fill.ts'
import { HttpSubject } from '../run/http-subject.ts'
import { Servers } from '../run/servers.ts'
import type { RunningProgram } from '../run/start-program.ts'
import { openPool } from '../subjects/stores.ts'

const IN_FLIGHT = 64
const PROCESSES = [1, 2, 4] as const

export async function growthLines(context: Context): Promise<Line[]> {
  // Separate servers, so that writing ten million rows does not disturb the other groups.
  const servers = new Servers(context.say)
  context.onEnd(() => servers.close())
  const lines = await tableLines(context, servers)
  lines.push(...(await processLines(context, servers)))
  lines.push(...(await memoryLines(context, servers)))
  return lines
}

async function tableLines(context: Context, servers: Servers): Promise<Line[]> {
  const { tableRows, expiredRows, warmMs, engineWakeMs } = context.scale
  const largest = Math.max(...tableRows)
  const lines: Line[] = []
  for (const rows of tableRows) {
    const expired = rows === largest ? expiredRows : 0
    const places = await filled(servers, { rows, expired }, context.say)
    const title = `growth: ${named(rows)} records`
    const program = await context.start('growth', { places, rows }, title)
    const sleeper = sleeperOf(engineWakeMs, async (ms) => {
      await program.call('touch')
      await program.call('first', { inFlight: IN_FLIGHT, ms, warmMs: 0 })
    })
    lines.push({
      id: `growth.first.${rows}.${IN_FLIGHT}`,
      group: 'growth',
      subject: `PostgreSQL, ${named(rows)} records`,
      what: 'first requests',
      load: `${IN_FLIGHT} in flight`,
      base: `growth.first.${tableRows[0]}.${IN_FLIGHT}`,
      measure: async (ms) =>
        (await program.call('first', { inFlight: IN_FLIGHT, ms, warmMs })) as Figures,
      sleeper,
    })
    if (rows === largest) {
      lines.push(...upkeepLines(program, rows).map((line) => ({ ...line, sleeper })))
    }
  }
  return lines
}

async function filled(
  servers: Servers,
  { rows, expired }: { readonly rows: number; readonly expired: number },
  say: (text: string) => void,
): Promise<Places> {
  const places = await servers.places('postgres')
  const pool = openPool(places)
  await postgresStore({ pool }).migrate()
  await pool.end()
  // The expired records first, because they are the oldest.
  const fills: Fill[] = [{ from: expired + 1, rows: rows - expired, kind: 'kept' }]
  if (expired > 0) fills.unshift({ from: 1, rows: expired, kind: 'expired' })
  await fillTable(places.postgres!, fills, say)
  return places
}

function upkeepLines(program: RunningProgram, rows: number): Line[] {
  const subject = `PostgreSQL, ${named(rows)} records`
  const line = (id: string, call: string, what: string, load: string): Line => {
    return {
      id: `growth.${id}.${rows}`,
      group: 'growth',
      subject,
      what,
      load,
      // Twice as long, because there are few calls, and the p99 needs at least a hundred.
      measure: async (ms) => (await program.call(call, { ms: 2 * ms })) as Figures,
    }
  }
  return [
    line('reap', 'reap', 'reap batch', '100 expired'),
    line('sweep', 'sweep', 'sweep batch', '100 lapsed'),
    line('sweep-idle', 'sweepIdle', 'sweep', 'none lapsed'),
    line('paced', 'paced', 'claims', '400 a second'),
    line('paced-reaping', 'pacedReaping', 'claims beside reaping', '400 a second'),
  ]
}

/** The sum of processes that share one database, each with as many requests in flight. */
async function processLines(context: Context, servers: Servers): Promise<Line[]> {
  const { warmMs, engineWakeMs } = context.scale
  const places = await servers.places('postgres')
  const programs: RunningProgram[] = []
  for (let n = 1; n <= Math.max(...PROCESSES); n++) {
    const config = { kind: 'own', store: 'postgres', places } as const
    programs.push(await context.start('subject', config, `growth: app process ${n}`))
  }
  const sleeper = sleeperOf(engineWakeMs, (ms) => {
    const load = { inFlight: IN_FLIGHT, ms, warmMs: 0 }
    return Promise.all(programs.map((program) => program.call('first', load)))
  })
  return PROCESSES.map((count): Line => {
    return {
      id: `growth.processes.${count}`,
      group: 'growth',
      subject: `${count} app ${count === 1 ? 'process' : 'processes'}, one PostgreSQL`,
      what: 'first requests',
      load: `${IN_FLIGHT} in flight in each`,
      base: 'growth.processes.1',
      async measure(ms) {
        const load = { inFlight: IN_FLIGHT, ms, warmMs }
        const chosen = programs.slice(0, count)
        return sumOf(await Promise.all(chosen.map((program) => program.call('first', load))))
      },
      sleeper,
    }
  })
}

function sumOf(parts: readonly unknown[]): Figures {
  const figures = parts as readonly Required<Figures>[]
  const rate = figures.reduce((sum, part) => sum + part.rate, 0)
  const weighted = (name: 'p50' | 'cpu') =>
    figures.reduce((sum, part) => sum + part[name] * part.rate, 0) / rate
  // The highest p99 of the processes: a mean would be too low.
  const p99 = Math.max(...figures.map((part) => part.p99))
  return { rate, p50: weighted('p50'), p99, cpu: weighted('cpu') }
}

async function memoryLines(context: Context, servers: Servers): Promise<Line[]> {
  const { heldRequests: requests } = context.scale
  const line = (id: string, subject: string, measure: () => Promise<Figures>): Line => {
    return {
      id: `growth.memory.${id}`,
      group: 'growth',
      subject,
      what: 'memory of a request',
      load: `${requests} held`,
      note: 'live memory while requests are in their handlers, after a garbage collection',
      measure,
    }
  }
  const engine = await context.start(
    'growth',
    { places: await servers.places('postgres'), rows: 0 },
    'growth: memory of the engine',
  )
  const lines = [
    line('engine', 'engine, PostgreSQL', async () => {
      return (await engine.call('memory', { requests })) as Figures
    }),
  ]
  for (const store of ['bare', 'postgres'] as const) {
    const places = await servers.places('postgres')
    const config = { kind: 'own', framework: 'express', store, places } as const
    const title = `Express, ${store === 'bare' ? 'bare' : 'PostgreSQL'}`
    const server = new HttpSubject(await context.start('http', config, `growth: ${title}`))
    lines.push(line(`express.${store}`, title, () => server.memory(requests)))
  }
  return lines
}

function named(rows: number): string {
  if (rows >= 1_000_000) return `${rows / 1_000_000} million`
  return `${rows / 1_000} thousand`
}
