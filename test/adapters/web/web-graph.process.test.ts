import { readFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { expect, it, onTestFinished, vi } from 'vitest'
import { systemClock } from '../../../src/core/time/clock.ts'

const root = join(import.meta.dirname, '..', '..', '..')

/** Node modules that Bun, Deno and Workers (nodejs_compat) have, and the only dependency. */
const PORTABLE = ['node:async_hooks', 'node:crypto', 'node:zlib', 'structured-headers']

const IMPORT = /^(?:import|export)\s+(type\s)?[^'"]*?from\s+['"]([^'"]+)['"]/gms

/** All modules that are loaded together with this file. */
function graphOf(entry: string): { files: Set<string>; packages: Set<string> } {
  const files = new Set<string>()
  const packages = new Set<string>()
  const waiting = [join(root, entry)]
  for (let file = waiting.pop(); file !== undefined; file = waiting.pop()) {
    if (files.has(file)) continue
    files.add(file)
    for (const [, type, name] of readFileSync(file, 'utf8').matchAll(IMPORT)) {
      if (type !== undefined) continue
      if (name!.startsWith('.')) waiting.push(join(dirname(file), name!))
      else packages.add(name!)
    }
  }
  return { files: new Set([...files].map((file) => relative(root, file))), packages }
}

it.each([
  'src/adapters/fetch/index.ts',
  'src/adapters/hono/index.ts',
  'src/stores/memory/store.ts',
  'src/index.ts',
])('%s loads only modules that every runtime has', (entry) => {
  const { files, packages } = graphOf(entry)
  expect(files.size).toBeGreaterThan(3)
  expect([...packages].filter((name) => !PORTABLE.includes(name))).toEqual([])
})

it('the web adapters import no Node modules', () => {
  const { files } = graphOf('src/adapters/hono/index.ts')
  const own = [...files, 'src/adapters/fetch/index.ts'].filter((file) => file.includes('adapters'))
  expect(own).toContain('src/adapters/web/handler.ts')
  for (const file of own) expect(readFileSync(join(root, file), 'utf8')).not.toMatch(/node:/)
})

it('the clock supports timers that are numbers, as on Workers', () => {
  vi.stubGlobal('setTimeout', () => 7)
  const clear = vi.fn<(timer: unknown) => void>()
  vi.stubGlobal('clearTimeout', clear)
  onTestFinished(() => void vi.unstubAllGlobals())
  systemClock.after(1000, () => undefined, { background: true })()
  expect(clear).toHaveBeenCalledWith(7)
})
