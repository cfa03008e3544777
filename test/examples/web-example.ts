import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { onTestFinished } from 'vitest'

export interface Example {
  readonly address: string
  /** Stops the example. Resolves with its exit code and error output. */
  stop(): Promise<{ code: number | null; errors: string }>
}

/** Starts an example on any free port, in a process that ends with the test. */
export async function startExample(
  folder: string,
  main: string,
  dataFile: string,
): Promise<Example> {
  const child = spawn(process.execPath, [main], {
    cwd: folder,
    env: { PATH: process.env['PATH'], PORT: '0', DATA_FILE: dataFile },
  })
  let errors = ''
  child.stderr.on('data', (chunk: Buffer) => {
    errors += chunk.toString()
  })
  const ended = once(child, 'close').then(([code]) => ({ code: code as number | null, errors }))
  onTestFinished(async () => {
    child.kill('SIGKILL')
    await ended
  })
  const address = await new Promise<string>((resolve, reject) => {
    let printed = ''
    child.stdout.on('data', (chunk: Buffer) => {
      printed += chunk.toString()
      const found = /listening on (\S+)\n/.exec(printed)
      if (found !== null) resolve(found[1]!)
    })
    child.once('close', () => reject(new Error(`${main} did not start: ${errors}`)))
  })
  return {
    address,
    stop() {
      child.kill('SIGTERM')
      return ended
    },
  }
}
