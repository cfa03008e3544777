import { expect, it } from 'vitest'
import { HELP, readArguments } from '../../chaos/arguments.ts'
import { plantInto } from '../../chaos/plant/plants.ts'

const read = (line: string) => readArguments(line.split(' ').filter(Boolean), () => 77)

it('the chaos command fills in default options', () => {
  expect(read('')).toEqual({
    kind: 'run',
    options: {
      seconds: 30,
      healSeconds: 360,
      seed: 77,
      store: 'sqlite',
      reportFile: 'chaos-reports/sqlite-77.json',
      plant: undefined,
      neighbours: 'on',
      untilViolation: false,
      keepLogs: false,
    },
  })
})

it('the chaos command accepts every option', () => {
  const line =
    '--seconds 600 --seed 0 --store mysql --heal-seconds 5 --report out.json ' +
    '--plant no-tenant --neighbours compare --until-violation --keep-logs'
  expect(read(line)).toEqual({
    kind: 'run',
    options: {
      seconds: 600,
      healSeconds: 5,
      seed: 0,
      store: 'mysql',
      reportFile: 'out.json',
      plant: 'no-tenant',
      neighbours: 'compare',
      untilViolation: true,
      keepLogs: true,
    },
  })
})

it('the help text of the chaos command names each option', () => {
  expect(read('--help')).toEqual({ kind: 'help' })
  const options = [
    'seconds',
    'seed',
    'store',
    'heal-seconds',
    'report',
    'plant',
    'keep-logs',
    'neighbours',
  ]
  for (const name of [...options, 'until-violation', 'help']) expect(HELP).toContain(`--${name} `)
})

it.each([
  ['--seconds ten', '--seconds must be a whole number from 1 to 86400, got "ten".'],
  ['--seconds 0', '--seconds must be a whole number from 1 to 86400, got "0".'],
  ['--heal-seconds -5', "--heal-seconds' argument is ambiguous"],
  ['--heal-seconds 1.5', '--heal-seconds must be a whole number from 1 to 86400, got "1.5".'],
  ['--seed 4294967296', '--seed must be a whole number from 0 to 4294967295, got "4294967296".'],
  ['--store redis', '--store must be one of sqlite, postgres, mysql, got "redis".'],
  [
    '--plant weeds',
    'early-ack, lapse-reruns-effect, no-tenant, shared-answer, no-turns, got "weeds".',
  ],
  ['--neighbours bad', '--neighbours must be one of on, off, compare, got "bad".'],
  ['--report=', '--report needs the name of a file.'],
  ['--hours 1', "Unknown option '--hours'"],
  ['sqlite', "Unexpected argument 'sqlite'"],
])('the chaos command refuses the arguments %s with one sentence', (line, sentence) => {
  const given = read(line)
  expect(given).toMatchObject({ kind: 'wrong', sentence: expect.stringContaining(sentence) })
  expect(given).not.toMatchObject({ sentence: expect.stringMatching(/\.\./) })
})

it('plants a bug only where its edit fits exactly once', () => {
  const edit = { file: 'core/any.js', find: 'a === b', replace: 'true' }
  expect(plantInto('if (a === b) return', edit)).toBe('if (true) return')
  for (const [source, times] of [
    ['if (a !== b) return', 0],
    ['a === b || a === b', 2],
  ] as const) {
    expect(() => plantInto(source, edit)).toThrow(
      `a planted bug must fit dist/core/any.js exactly once, and fits ${times} times`,
    )
  }
})
