/** Runs one of `programs/` in a separate process. Started by `run/start-program.ts`. */
import type { Program, ProgramCall, ProgramMessage } from './run/contract.ts'

const [name, config] = process.argv.slice(2) as [string, string]
const { open } = (await import(`./programs/${name}.ts`)) as {
  open: (config: unknown) => Promise<Program>
}
const program = await open(JSON.parse(config))

const tell = (message: ProgramMessage): void => {
  process.send?.(message)
}

process.on('message', ({ id, name: call, args }: ProgramCall) => {
  const run = async (): Promise<unknown> => {
    const found = program.calls[call]
    if (found === undefined) throw new Error(`${name} has no call ${call}`)
    return found(args as never)
  }
  run().then(
    (value) => tell({ kind: 'answer', id, value }),
    (error: unknown) => tell({ kind: 'failed', id, text: textOf(error) }),
  )
})

// The parent has disconnected or ended, so this process ends.
process.on('disconnect', () => {
  const ended = program.close()
  // A peer that does not close must not block the end of the run.
  setTimeout(() => process.exit(), 5_000).unref()
  ended.then(
    () => process.exit(),
    (error: unknown) => {
      console.error(`${name} did not close: ${textOf(error)}`)
      process.exit(1)
    },
  )
})

tell({ kind: 'ready', info: program.info })

function textOf(error: unknown): string {
  return error instanceof Error ? (error.stack ?? error.message) : String(error)
}
