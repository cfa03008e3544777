/** A build of the package for the examples to import. */
import { execFileSync } from 'node:child_process'
import { cpSync, globSync, statSync } from 'node:fs'
import { join } from 'node:path'

const root = join(import.meta.dirname, '..', '..')
const CONFIGS = ['tsconfig.json', 'tsconfig.build.json']

/**
 * Puts a build into a folder: a copy of the repository's build if that is newer than all sources,
 * as it is in `npm test`, and otherwise a new build.
 */
export function copyBuildTo(folder: string): void {
  const to = join(folder, 'dist')
  if (isUpToDate()) return cpSync(join(root, 'dist'), to, { recursive: true })
  const args = ['-p', join(root, 'tsconfig.build.json'), '--outDir', to]
  execFileSync(join(root, 'node_modules', '.bin', 'tsc'), args, { stdio: 'inherit' })
}

/** Whether every source has a built file, and no built file is older than any source. */
function isUpToDate(): boolean {
  const sources = globSync('src/**/*.ts', { cwd: root })
  const built = sources
    .filter((file) => !file.endsWith('.d.ts'))
    .map((file) => file.replace(/^src/, 'dist').replace(/\.ts$/, '.js'))
  const [made, from] = [timesOf(built), timesOf([...sources, ...CONFIGS])]
  return Math.min(...made) > Math.max(...from)
}

/** A missing file counts as older than all others. */
function timesOf(files: readonly string[]): number[] {
  return files.map((file) => statSync(join(root, file), { throwIfNoEntry: false })?.mtimeMs ?? 0)
}
