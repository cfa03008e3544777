/**
 * Fails when `exports` in package.json and the built files differ, in either direction: a subpath
 * whose file is missing, or a built entry that nobody can import.
 *
 * Usage: node scripts/check-exports.ts [folder with package.json and dist]
 */
import { existsSync, globSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'

type Target = string | { readonly types: string; readonly default: string }

const root = process.argv[2] ?? join(import.meta.dirname, '..')
const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
  exports: Record<string, Target>
}

const faults: string[] = []
const exported = new Set<string>()

for (const [subpath, target] of Object.entries(manifest.exports)) {
  if (typeof target === 'string') {
    if (!existsSync(join(root, target))) faults.push(`"${subpath}" points at ${target}: no file`)
    continue
  }
  exported.add(target.default)
  for (const file of [target.types, target.default]) {
    if (!existsSync(join(root, file))) faults.push(`"${subpath}" points at ${file}: not built`)
  }
  if (target.types !== target.default.replace(/\.js$/, '.d.ts')) {
    faults.push(`"${subpath}" takes its types (${target.types}) from another file than its code`)
  }
  if (existsSync(join(root, target.default))) {
    const url = pathToFileURL(join(root, target.default)).href
    const names = Object.keys((await import(url)) as object)
    if (names.length === 0) faults.push(`"${subpath}" (${target.default}) exports no name`)
    if (names.includes('default')) faults.push(`"${subpath}" (${target.default}) has a default`)
  }
}

// A folder has an index, and an adapter a file of its own, only because it is a subpath.
for (const file of globSync(['dist/**/index.js', 'dist/adapters/*.js'], { cwd: root })) {
  const target = `./${file.replaceAll('\\', '/')}`
  if (!exported.has(target)) faults.push(`${target} is built, but "exports" does not name it`)
}

for (const fault of faults) process.stderr.write(`check-exports: ${fault}\n`)
if (faults.length > 0) process.exitCode = 1
else process.stdout.write(`check-exports: ${exported.size} subpaths, each with code and types\n`)
