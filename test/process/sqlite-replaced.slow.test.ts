import { renameSync, rmSync } from 'node:fs'
import { DatabaseSync } from 'node:sqlite'
import { expect, it, onTestFinished } from 'vitest'
import { scratchFolder } from '../stores/scratch-folder.ts'
import { startWorker } from './worker-process.ts'

const FILES = ['', '-wal', '-shm'] as const

function setup() {
  const folder = scratchFolder()
  onTestFinished(folder.remove)
  const path = folder.file('records.db')
  const makeTable = () => {
    const app = new DatabaseSync(path)
    app.exec('CREATE TABLE IF NOT EXISTS payment (key TEXT)')
    app.close()
  }
  const start = async (mode: 'obey' | 'loop') => {
    makeTable()
    const worker = startWorker('sqlite-worker.ts', [mode, path, '1'])
    await worker.written(1)
    const ask = async (line: string) => {
      const count = worker.lines.length
      worker.tell(line)
      await worker.written(count + 1)
      return worker.lines[count]
    }
    return { ...worker, ask }
  }
  return { path, folder, start }
}

const REFUSED =
  /sqlite store failed to .* \(unavailable\): .*records\.db" (was deleted or moved|while the store)/

const WAYS: readonly { readonly name: string; readonly remove: (path: string) => void }[] = [
  { name: 'deleted', remove: (path) => FILES.forEach((end) => rmSync(`${path}${end}`)) },
  {
    name: 'moved',
    remove: (path) => FILES.forEach((end) => renameSync(`${path}${end}`, `${path}.old${end}`)),
  },
]

// The first process holds keys, the file is removed, and a second runs the same keys in a new file.
it.each(WAYS)(
  'acknowledges nothing beside a second process after the SQLite file was $name',
  async (way) => {
    const { path, start } = setup()
    const first = await start('obey')
    expect(await first.ask('claim a')).toBe('claimed')
    expect(await first.ask('claim b')).toBe('claimed')
    expect(await first.ask('claim c')).toBe('claimed')
    expect(await first.ask('complete c')).toBe('settled')

    way.remove(path)
    const second = await start('obey')
    for (const key of ['a', 'b', 'c', 'd']) expect(await second.ask(`claim ${key}`)).toBe('claimed')
    expect(await second.ask('complete a')).toBe('settled')
    expect(await second.ask('pay b')).toBe('settled')

    // Keys completed by the second process, held by it, completed in the old file, and new.
    expect(await first.ask('complete a')).toMatch(REFUSED)
    expect(await first.ask('pay b')).toMatch(REFUSED)
    expect(await first.ask('claim c')).toMatch(REFUSED)
    expect(await first.ask('claim d')).toMatch(REFUSED)
    expect(await first.ask('claim e')).toMatch(REFUSED)
    expect(await second.ask('complete d')).toBe('settled')

    // A restart finds the new file, with every key of the second process.
    await first.kill()
    const restarted = await start('obey')
    for (const key of ['a', 'b', 'd']) expect(await restarted.ask(`claim ${key}`)).toBe('completed')
    expect(await restarted.ask('claim c')).toBe('in_progress')
  },
)

it('stops in the middle of its work when another file replaces its SQLite file', async () => {
  const { path, folder, start } = setup()
  const other = folder.file('other.db')
  new DatabaseSync(other).close()
  const worker = await start('loop')
  await worker.written(20)
  renameSync(other, path)
  expect(await worker.ended).toBe(1)
})

it('refuses to start when the SQLite database was deleted without its log', async () => {
  const { path, start } = setup()
  const first = await start('obey')
  expect(await first.ask('claim a')).toBe('claimed')
  rmSync(path)
  const second = startWorker('sqlite-worker.ts', ['obey', path, '1'])
  expect(await second.ended).toBe(1)
  await expect(second.written(1)).rejects.toThrow(/does not exist, but its write-ahead log does/)
})
