/**
 * Compiles this example, because Node does not run decorators yet, and starts it. From the root of
 * the repository: `npm run compile && npx node examples/nest/start.ts`.
 */
import { execFileSync } from 'node:child_process'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'

const typescript = createRequire(import.meta.url).resolve('typescript/package.json')
const project = join(import.meta.dirname, 'tsconfig.start.json')
const tsc = join(dirname(typescript), 'bin', 'tsc')
execFileSync(process.execPath, [tsc, '-p', project], { stdio: 'inherit' })

const main = './dist/main.js'
await import(main)
