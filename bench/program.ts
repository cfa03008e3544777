/** One of `programs/` in a process of its own. Started by `run/start-program.ts`. */
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

// The parent lets go, or has died: either way this is over.
process.on('disconnect', () => {
  const ended = program.close()
  // A peer that does not end must not keep the run from ending.
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
