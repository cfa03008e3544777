/**
 * Preloaded into a process (`node --import`): plants the bug that `CHAOS_PLANT` names into
 * the built sources while they are loaded.
 */
import { registerHooks } from 'node:module'
import { join, sep } from 'node:path'
import { fileURLToPath } from 'node:url'
import { readFileSync } from 'node:fs'
import { PLANT_NAMES, PLANTS, plantInto } from './plants.ts'

const DIST = join(import.meta.dirname, '..', '..', 'dist') + sep
const name = PLANT_NAMES.find((plant) => plant === process.env['CHAOS_PLANT'])
if (name === undefined) {
  throw new Error(`CHAOS_PLANT names no known bug: ${JSON.stringify(process.env['CHAOS_PLANT'])}`)
}
const edits = PLANTS[name]
// Checks all edits at once, because another process may load the other files.
for (const edit of edits) plantInto(readFileSync(join(DIST, edit.file), 'utf8'), edit)

registerHooks({
  load(url, context, nextLoad) {
    const loaded = nextLoad(url, context)
    if (!url.startsWith('file:')) return loaded
    const path = fileURLToPath(url)
    const own = edits.filter(({ file }) => path === join(DIST, file))
    if (own.length === 0 || loaded.source === null || loaded.source === undefined) return loaded
    const source = own.reduce(plantInto, textOf(loaded.source))
    return { ...loaded, source }
  },
})

function textOf(source: string | ArrayBufferLike | NodeJS.TypedArray): string {
  return typeof source === 'string' ? source : Buffer.from(source as Uint8Array).toString('utf8')
}
