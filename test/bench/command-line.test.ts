import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { GROUPS } from '../../bench/report/results.ts'
import { HELP, parseCommand, type Command } from '../../bench/run/command-line.ts'
import { FULL, QUICK } from '../../bench/run/scale.ts'
import { FINGERPRINT, REPLY_BYTES } from '../../bench/run/work.ts'

describe('the command line', () => {
  it('the benchmark measures everything in at least seven rounds by default', () => {
    const command = parse()
    expect(command).toMatchObject({ scale: FULL, groups: GROUPS, isWhole: true, isQuick: false })
    expect(FULL.rounds).toBeGreaterThanOrEqual(7)
  })

  it('a run is complete only if nothing is left out', () => {
    expect(parse('--quick')).toMatchObject({ isWhole: false, scale: QUICK })
    expect(parse('--only', 'engine').isWhole).toBe(false)
    expect(parse('--rounds', '3').isWhole).toBe(false)
    expect(parse('--rounds', '9').isWhole).toBe(true)
  })

  it('the command line sorts groups, and refuses unknown ones', () => {
    expect(parse('--only', 'growth,engine').groups).toEqual(['engine', 'growth'])
    expect(parseCommand(['--only', 'engin'])).toMatchObject({
      kind: 'wrong',
      text: expect.stringContaining('engin'),
    })
  })

  it('the command line refuses unknown options', () => {
    expect(parseCommand(['--fast']).kind).toBe('wrong')
    expect(parseCommand(['--rounds', 'many']).kind).toBe('wrong')
    expect(parseCommand(['--round-ms', '0']).kind).toBe('wrong')
  })

  it('the help text explains every option', () => {
    expect(parseCommand(['--help']).kind).toBe('help')
    for (const name of ['quick', 'only', 'rounds', 'round-ms', 'json', 'svg']) {
      expect(HELP).toContain(`--${name}`)
    }
  })
})

it('every subject gets replies of 200 bytes and fingerprints of 32', () => {
  expect(REPLY_BYTES.length).toBe(200)
  expect(Buffer.from(FINGERPRINT.slice('v1:'.length), 'base64url').length).toBe(32)
})

describe('the packages it measures against', () => {
  const folder = join(import.meta.dirname, '../../bench')
  const read = (name: string) => readFileSync(join(folder, name), 'utf8')

  it('the measured packages are no workspace of this one, so npm install leaves them out', () => {
    const root = readFileSync(join(folder, '../package.json'), 'utf8')
    const { workspaces } = JSON.parse(root) as { workspaces: string[] }
    expect(workspaces.filter((workspace) => workspace.startsWith('bench'))).toEqual([])
    expect(existsSync(join(folder, 'package-lock.json'))).toBe(true)
  })

  it('the measured packages have exact versions, locked without a registry address', () => {
    const { dependencies } = JSON.parse(read('package.json')) as {
      dependencies: Record<string, string>
    }
    expect(Object.values(dependencies).filter((version) => !/^\d/.test(version))).toEqual([])
    expect(read('package-lock.json')).not.toContain('"resolved"')
  })
})

function parse(...args: string[]): Command {
  const command = parseCommand(args)
  if (command.kind !== 'run') throw new Error(`expected a run, got ${JSON.stringify(command)}`)
  return command
}
