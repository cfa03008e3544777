/** Runs the first program of the operations guide as it is printed. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import { scratchFolder } from '../stores/scratch-folder.ts'
import { copyPackageTo } from './payments/service.ts'

const GUIDE = join(import.meta.dirname, '..', '..', 'docs/guides/operations.md')

it(
  'the program of the operations guide pays once, sends one receipt and shuts down cleanly',
  { timeout: 120_000 },
  async () => {
    const scratch = scratchFolder()
    onTestFinished(scratch.remove)
    const folder = scratch.file('package')
    copyPackageTo(folder)
    const [, program] = /```ts\n([^]*?)```/.exec(readFileSync(GUIDE, 'utf8'))!
    writeFileSync(join(folder, 'payments.ts'), program!)
    const child = spawn(process.execPath, ['payments.ts'], {
      cwd: folder,
      env: { PATH: process.env['PATH'], PORT: '0' },
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    onTestFinished(() => void child.kill('SIGKILL'))
    const ended = once(child, 'close')
    let printed = ''
    const says = (pattern: RegExp) =>
      new Promise<RegExpExecArray>((resolve, reject) => {
        const look = () => {
          const found = pattern.exec(printed)
          if (found !== null) resolve(found)
        }
        child.stdout.on('data', look)
        child.once('close', () => reject(new Error(`the program ended: ${printed}`)))
        look()
      })
    child.stdout.on('data', (chunk: Buffer) => {
      printed += chunk.toString()
    })

    const [, port] = await says(/port: (\d+)/)
    const pay = (key: string, amount: number) =>
      fetch(`http://127.0.0.1:${port}/payments`, {
        method: 'POST',
        headers: {
          'Content-Type': 'application/json',
          Connection: 'close',
          'Idempotency-Key': key,
        },
        body: JSON.stringify({ amount }),
      })
    const first = await pay('p-1', 100)
    const paid = (await first.json()) as { id: string }
    expect([first.status, paid]).toEqual([
      201,
      { id: expect.any(String), charged: { id: 'ch_1', status: 'succeeded' } },
    ])
    const retry = await pay('p-1', 100)
    expect([retry.status, await retry.json()]).toEqual([201, paid])
    expect(retry.headers.get('idempotent-replayed')).toBe('true')
    expect((await pay('p-2', 5_000)).status).toBe(402)
    await says(new RegExp(`receipt .*${paid.id}`))

    child.kill('SIGTERM')
    expect(await ended).toEqual([0, null])
    expect(printed.split(paid.id)).toHaveLength(2)
  },
)
