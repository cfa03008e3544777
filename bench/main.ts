/**
 * The benchmark: `npm run bench`, `npm run bench -- --help`. How to read it: bench/README.md.
 */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { choiceLines } from './groups/choices.ts'
import { engineLines } from './groups/engine.ts'
import { growthLines } from './groups/growth.ts'
import { httpLines } from './groups/http.ts'
import { limitLines } from './groups/limits.ts'
import { networkLines } from './groups/network.ts'
import { peerLines } from './groups/peers.ts'
import { relayLines } from './groups/relay.ts'
import { toSvg } from './report/chart.ts'
import { PANELS } from './report/panels.ts'
import { wrongReferences } from './report/references.ts'
import type { Group, LineResult } from './report/results.ts'
import { toTables, toVerdictLines } from './report/table.ts'
import { TARGETS } from './report/targets.ts'
import { judge, type Verdict } from './report/verdicts.ts'
import { HELP, parseCommand, type Command } from './run/command-line.ts'
import { Context, type Line } from './run/context.ts'
import { installPeers } from './run/install-peers.ts'
import { describeMachine, toLine, type Machine } from './run/machine.ts'
import { Progress } from './run/progress.ts'
import { measureRounds } from './run/rounds.ts'
import { Servers } from './run/servers.ts'

const CHART = join(import.meta.dirname, '..', 'docs', 'benchmark.svg')

const stopping = new AbortController()

// The first signal ends the servers and removes their files; the second exits at once.
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.on(signal, () => {
    if (stopping.signal.aborted) process.exit(2)
    stopping.abort(new Error(`stopped by ${signal}`))
  })
}

const OPEN: Readonly<Record<Group, (context: Context) => Promise<Line[]>>> = {
  engine: engineLines,
  network: networkLines,
  http: httpLines,
  peers: peerLines,
  limits: limitLines,
  choices: choiceLines,
  relay: relayLines,
  growth: growthLines,
}

async function main(): Promise<void> {
  const command = parseCommand(process.argv.slice(2))
  switch (command.kind) {
    case 'help':
      return console.log(HELP)
    case 'wrong':
      console.error(`${command.text}\n\n${HELP}`)
      process.exitCode = 2
      return
    case 'run': {
      if (command.groups.includes('peers')) await installPeers()
      const startedMs = performance.now()
      const { machine, lines } = await run(command)
      const minutes = (performance.now() - startedMs) / 60_000
      const verdicts = TARGETS.map((target) => judge(target, lines))
      report(command, { machine, lines, verdicts })
      console.log(`The run took ${minutes.toFixed(1)} minutes.`)
      const isMissed = verdicts.some(({ kind }) => kind === 'missed')
      process.exitCode = isMissed && !command.isQuick ? 1 : 0
    }
  }
}

async function run(command: Command): Promise<{ machine: Machine; lines: LineResult[] }> {
  const machine = describeMachine()
  const progress = new Progress()
  const say = (text: string) => {
    // Every long step reports its progress first, so this is where a stopped run ends.
    stopping.signal.throwIfAborted()
    progress.say(text)
  }
  const servers = new Servers(say)
  const context = new Context(servers, command.scale, say)
  try {
    const lines: Line[] = []
    for (const group of command.groups) lines.push(...(await OPEN[group](context)))
    if (command.isWhole) checkReferences(lines)
    const versions = await servers.versions()
    const { rounds, roundMs } = command.scale
    const measured = await measureRounds(lines, {
      rounds,
      roundMs,
      onStep: ({ round, done, line }) => {
        const counted = round === 0 ? 'warming up' : `round ${round} of ${rounds}`
        say(`${counted}: ${done + 1} of ${lines.length}, ${line.id}`)
      },
    })
    return { machine: { ...machine, versions }, lines: measured }
  } finally {
    progress.say('ending servers and programs')
    await context.close()
    await servers.close()
    progress.end()
  }
}

/** Runs before the measurement, which takes long. */
function checkReferences(lines: readonly Line[]): void {
  const wrong = wrongReferences({ lines, targets: TARGETS, panels: PANELS })
  if (wrong.length > 0) throw new Error(`unknown or duplicate line ids: ${wrong.join(', ')}`)
}

interface Report {
  readonly machine: Machine
  readonly lines: readonly LineResult[]
  readonly verdicts: readonly Verdict[]
}

function report(command: Command, { machine, lines, verdicts }: Report): void {
  const { rounds, roundMs } = command.scale
  const how = `medians of ${rounds} interleaved rounds of ${roundMs} ms, ± half their quartiles`
  console.log(`\n${toLine(machine)}`)
  console.log(`Load before the run: ${machine.loadBefore.toFixed(2)}. Figures: ${how}.`)
  console.log(`\n${toTables(lines)}\n\n${toVerdictLines(verdicts)}\n`)
  if (command.isQuick) {
    console.log('A quick run is imprecise, because code is hardly compiled. It judges no target.')
  }
  if (command.json !== undefined) {
    const everything = { machine, scale: command.scale, lines, verdicts }
    writeFileSync(command.json, `${JSON.stringify(everything, undefined, 2)}\n`)
  }
  const chart = command.svg ?? (command.isWhole ? CHART : undefined)
  if (chart !== undefined) {
    const title = 'The cost of protecting a route'
    const subtitle = `${machine.processor}, ${machine.cores} cores, Node ${machine.node}; ${how}`
    writeFileSync(chart, toSvg({ title, subtitle, panels: PANELS }, lines))
  }
  const missed = command.isQuick ? [] : verdicts.filter(({ kind }) => kind === 'missed')
  for (const { target } of missed) console.log(`MISSED by more than the spread: ${target.name}`)
}

try {
  await main()
} catch (error) {
  console.error(error)
  // Programs that were starting when the run failed would keep this process alive.
  process.exit(2)
}
