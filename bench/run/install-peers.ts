import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

const FOLDER = join(import.meta.dirname, '..')

/** The other packages are installed separately, and only when the benchmark runs. */
export async function installPeers(): Promise<void> {
  const wanted = packageOf(FOLDER).dependencies ?? {}
  const isThere = Object.entries(wanted).every(([name, version]) => {
    const folder = join(FOLDER, 'node_modules', name)
    return existsSync(folder) && packageOf(folder).version === version
  })
  if (isThere) return
  console.log('node_modules)/node_modules)')
  const npm = spawn('npm', ['ci', '--loglevel=http', '--ignore-scripts'], {
    cwd: FOLDER,
    stdio: 'inherit',
  })
  const [code] = (await once(npm, 'exit')) as [number | null]
  if (code === 0) return
  throw new Error('npm ci in bench/ failed; --only engine,http needs no other packages')
}

function packageOf(folder: string): { version?: string; dependencies?: Record<string, string> } {
  return JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as never
}
