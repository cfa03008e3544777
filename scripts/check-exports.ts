/**
 * Fails when `exports` in package.json and the built files differ, in either direction: a subpath
 * whose file is missing, or a built file that no subpath leads to.
 *
 * Usage: node scripts/check-exports.ts [folder with package.json and dist]
 */
import { existsSync, globSync, readFileSync } from 'node:fs'
import { join, posix } from 'node:path'
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

const reached = new Set<string>()
for (const file of exported) reach(file.replace(/\.js$/, ''))
for (const file of globSync('dist/**/*.js', { cwd: root })) {
  const stem = `./${file.replaceAll('\\', '/').replace(/\.js$/, '')}`
  if (!reached.has(stem)) faults.push(`${stem}.js is built, but no subpath leads to it`)
}

for (const fault of faults) process.stderr.write(`check-exports: ${fault}\n`)
if (faults.length > 0) process.exitCode = 1
else process.stdout.write(`check-exports: ${exported.size} subpaths, each with code and types\n`)

/** Follows imports in code and in declarations: a module of types alone is only in the latter. */
function reach(stem: string): void {
  if (reached.has(stem)) return
  reached.add(stem)
  for (const file of [`${stem}.js`, `${stem}.d.ts`]) {
    if (!existsSync(join(root, file))) continue
    const text = readFileSync(join(root, file), 'utf8')
    for (const [, name] of text.matchAll(/\b(?:from|import)\s*\(?\s*['"](\.[^'"]+)['"]/g)) {
      reach(`./${posix.join(posix.dirname(stem), name!.replace(/(\.d)?\.[jt]s$/, ''))}`)
    }
  }
}
