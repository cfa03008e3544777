import { execFileSync } from 'node:child_process'
import {
  existsSync,
  globSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { expect, it } from 'vitest'
import { ERROR_CODES } from '../src/core/errors.ts'
import { POLICY_OPTION_NAMES } from '../src/core/engine/policy.ts'
import { PROBLEMS } from '../src/protocol/problems.ts'

const root = join(import.meta.dirname, '..')
const pages = globSync('**/*.md', {
  cwd: root,
  exclude: (name) => /(^|\/)(node_modules|dist|data)$/.test(name),
})

it('gives every error code a heading, and every such heading is a code', () => {
  const named = headingsOf('docs/reference/errors.md').filter((text) => /^[A-Z][A-Z_]+$/.test(text))
  expect(named.toSorted()).toEqual([...ERROR_CODES].toSorted())
})

it('gives every problem code a heading, and every such heading is a code', () => {
  const named = headingsOf('docs/reference/problems.md').filter((text) =>
    /^[a-z]+_[a-z_]+$/.test(text),
  )
  const codes = Object.values(PROBLEMS).map(({ code }) => code)
  expect(named.toSorted()).toEqual(codes.toSorted())
})

it('lists every option of a guard in the reference', () => {
  const source = readFileSync(join(root, 'src/http/guard/resolve-guard-options.ts'), 'utf8')
  const [, list] = /GUARD_OPTION_NAMES = \[([^]*?)\] as const/.exec(source)!
  const names = [...list!.matchAll(/'(\w+)'/g)].map(([, name]) => name!)
  expect(names).toContain('onStoreFailure')
  const listed = [...prose('docs/reference/options.md').matchAll(/^\| (`.*?) \|/gm)]
    .flatMap(([, cell]) => [...cell!.matchAll(/`(\w+)`/g)])
    .map(([, name]) => name!)
  expect(listed).toEqual(expect.arrayContaining([...names, ...POLICY_OPTION_NAMES]))
})

// A second example would otherwise open the tables of the first.
it('gives each example its own data file', () => {
  const files = globSync('examples/**/*.ts', { cwd: root }).flatMap((path) =>
    [...readFileSync(join(root, path), 'utf8').matchAll(/'(?:data\/)?([\w-]+\.db)'/g)].map(
      ([, file]) => file!,
    ),
  )
  expect(files.length).toBeGreaterThan(6)
  expect(new Set(files).size).toBe(files.length)
})

it('links only to files and headings that exist', () => {
  const broken = pages.flatMap((page) =>
    [...prose(page).matchAll(/\]\(([^)\s]+)[^)]*\)|^\[[^\]]+\]:\s*(\S+)/gm)]
      .map(([, inline, reference]) => inline ?? reference!)
      .filter((link) => !/^[a-z]+:/.test(link))
      .filter((link) => !resolves(page, link))
      .map((link) => `${page}: ${link}`),
  )
  expect(broken).toEqual([])
})

// Every block is a whole program; ```ts fragment marks the few that are not.
it('shows code that compiles', { timeout: 120_000 }, () => {
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-docs-'))
  try {
    symlinkSync(join(root, 'node_modules'), join(folder, 'node_modules'), 'junction')
    for (const page of pages) writeBlocks(folder, page)
    const compilerOptions = { noUnusedLocals: false, noUnusedParameters: false }
    // What we have no types of: these blocks are about the adapters.
    writeFileSync(join(folder, 'shims.d.ts'), "declare module 'cors'\ndeclare module '@koa/cors'\n")
    // The sources the examples import need the one ambient type that we declare ourselves.
    const include = ['*.ts', join(root, 'src/protocol/buffer-source.d.ts')]
    const config = { extends: join(root, 'tsconfig.json'), compilerOptions, include }
    writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify(config))
    writeFileSync(join(folder, 'package.json'), '{ "type": "module" }')
    expect(compileErrors(folder)).toBe('')
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
})

/** Each block gets a file named for its page and line, so that an error can be found. */
function writeBlocks(folder: string, page: string): void {
  const text = readFileSync(join(root, page), 'utf8')
  for (const { 1: block, index } of text.matchAll(/^```ts\n([^]*?)^```$/gm)) {
    const line = text.slice(0, index).split('\n').length + 1
    const name = `${page.replaceAll(/[^\w]/g, '-')}-line-${line}.ts`
    writeFileSync(join(folder, name), `${block}export {}\n`)
  }
}

function compileErrors(folder: string): string {
  if (globSync('*.ts', { cwd: folder }).length === 0) return ''
  try {
    execFileSync(join(root, 'node_modules/.bin/tsc'), ['-p', folder], { encoding: 'utf8' })
    return ''
  } catch (error) {
    return (error as { stdout: string }).stdout
  }
}

function resolves(page: string, link: string): boolean {
  const [path, anchor] = link.split('#') as [string, string?]
  const target = path === '' ? page : join(dirname(page), decodeURI(path))
  if (!existsSync(join(root, target))) return false
  if (anchor === undefined || !target.endsWith('.md')) return true
  return headingsOf(target).map(toAnchor).includes(anchor)
}

/** As GitHub makes them. */
function toAnchor(heading: string): string {
  return heading
    .toLowerCase()
    .replaceAll(/[^\p{L}\p{N}\s_-]/gu, '')
    .replaceAll(' ', '-')
}

function headingsOf(page: string): string[] {
  return [...prose(page).matchAll(/^#{1,6} +(.+?) *$/gm)].map(([, text]) => {
    return text!.replaceAll(/`|\*\*|\[([^\]]*)\]\([^)]*\)/g, '$1')
  })
}

/** A page without its code blocks, where a `#` is a comment and brackets are code. */
function prose(page: string): string {
  return readFileSync(join(root, page), 'utf8').replaceAll(/^```[^]*?^```$/gm, '')
}
