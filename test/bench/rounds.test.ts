import { describe, expect, it } from 'vitest'
import { sleeperOf, type Line } from '../../bench/run/context.ts'
import { measure } from '../../bench/run/measure.ts'
import { measureRounds } from '../../bench/run/rounds.ts'
import { Counter, prove, type Subject } from '../../bench/run/subject.ts'
import { REPLY, REPLY_BYTES } from '../../bench/run/work.ts'
import { line } from './lines.ts'

describe('rounds', () => {
  it('rounds measure each line once, in turns, and do not count the first round', async () => {
    const steps: string[] = []
    let calls = 0
    const lines = ['a', 'b', 'c'].map((id): Line => {
      return { ...line(id, {}), measure: async () => ({ rate: ++calls }) }
    })
    const results = await measureRounds(lines, {
      rounds: 2,
      roundMs: 8,
      onStep: ({ round, line: { id } }) => steps.push(`${round}${id}`),
    })
    expect(steps.slice(0, 3).toSorted()).toEqual(['0a', '0b', '0c'])
    expect(steps.slice(3, 6).toSorted()).toEqual(['1a', '1b', '1c'])
    expect(steps.slice(6).toSorted()).toEqual(['2a', '2b', '2c'])
    expect(results.map(({ id, figures }) => [id, figures.rate?.length])).toEqual([
      ['a', 2],
      ['b', 2],
      ['c', 2],
    ])
    const rates = results.flatMap(({ figures }) => figures.rate ?? [])
    expect(new Set(rates)).toEqual(new Set([4, 5, 6, 7, 8, 9]))
  })

  it('rounds wake each process once, before its lines, which stay together', async () => {
    const heard: string[] = []
    const linesOf = (name: string, family: string): Line[] => {
      const sleeper = { wake: async () => void heard.push(`wake ${name}`) }
      return ['1', '2'].map((part): Line => {
        const id = `${name}${part}`
        const measure = async () => (heard.push(id), { rate: 1 })
        return { ...line(id, {}), sleeper, family, measure }
      })
    }
    // Mixed on purpose: the given order must not matter.
    const [a, b, c] = [linesOf('a', 'x'), linesOf('b', 'y'), linesOf('c', 'x')]
    const lines = [0, 1].flatMap((part) => [a[part]!, b[part]!, c[part]!])
    await measureRounds(lines, { rounds: 1, roundMs: 1, onStep: () => undefined })
    for (const round of [heard.slice(0, 9), heard.slice(9)]) {
      const turns = [0, 3, 6].map((at) => round.slice(at, at + 3))
      for (const [waking, ...measured] of turns) {
        const name = waking!.replace('wake ', '')
        expect(measured.toSorted()).toEqual([`${name}1`, `${name}2`])
      }
      const names = turns.map(([waking]) => waking!.replace('wake ', ''))
      expect(names.toSorted()).toEqual(['a', 'b', 'c'])
      expect(names.indexOf('b'), 'not between two of another family').not.toBe(1)
    }
  })

  it('rounds end with the first line that fails, and name it', async () => {
    const broken: Line = { ...line('a', {}), measure: () => Promise.reject(new Error('409')) }
    const rounds = { rounds: 1, roundMs: 1, onStep: () => undefined }
    const running = measureRounds([broken], rounds)
    await expect(running).rejects.toThrow('a could not be measured')
    await expect(running).rejects.toHaveProperty('cause.message', '409')
    const sleeper = { wake: () => Promise.reject(new Error('asleep')) }
    const asleep: Line = { ...line('b', {}), sleeper, measure: async () => ({ rate: 1 }) }
    await expect(measureRounds([asleep], rounds)).rejects.toThrow('b could not be measured')
  })
})

describe('measuring', () => {
  it('measuring keeps the given number of calls in progress, and counts the ended', async () => {
    let [underWay, most, ended] = [0, 0, 0]
    const once = async () => {
      most = Math.max(most, ++underWay)
      await new Promise((resolve) => setImmediate(resolve))
      underWay--
      ended++
    }
    const figures = await measure(once, { inFlight: 8, ms: 5, warmMs: 0 })
    expect(most).toBe(8)
    expect(ended).toBeGreaterThanOrEqual(16)
    expect(figures.rate).toBeGreaterThan(0)
    expect(figures.p99).toBeGreaterThanOrEqual(figures.p50!)
  })

  it('measuring fails when a call fails', async () => {
    const once = () => Promise.reject(new Error('refused'))
    await expect(measure(once, { inFlight: 2, ms: 5, warmMs: 0 })).rejects.toThrow('refused')
  })
})

describe('a sleeper', () => {
  it('a sleeper is under load for the given time, and not at all for no time', async () => {
    const loads: number[] = []
    const load = async (ms: number) => void loads.push(ms)
    await sleeperOf(1_000, load).wake()
    await sleeperOf(0, load).wake()
    expect(loads).toEqual([1_000])
  })
})

describe('a subject', () => {
  const close = async () => undefined
  const keeping = (counter: Counter, reply: unknown): Subject => {
    const kept = new Map<string, unknown>()
    return {
      async run(key) {
        if (!kept.has(key)) {
          counter.runs++
          kept.set(key, reply)
        }
        return kept.get(key)
      },
      close,
    }
  }

  it('a subject that runs the work once and repeats its reply passes the check', async () => {
    for (const reply of [REPLY, REPLY_BYTES, JSON.stringify(REPLY)]) {
      const counter = new Counter()
      await prove(keeping(counter, reply), counter, 'k')
    }
  })

  it('a subject that reruns or skips the work, or changes the reply, is refused', async () => {
    const counter = new Counter()
    const always: Subject = { run: async () => (counter.runs++, REPLY), close }
    await expect(prove(always, counter, 'k')).rejects.toThrow('runs after the replay')
    const never: Subject = { run: async () => REPLY, close }
    await expect(prove(never, counter, 'k')).rejects.toThrow('runs after the first request')
    const other = keeping(counter, { status: 'refused' })
    await expect(prove(other, counter, 'k')).rejects.toThrow('the first reply')
  })
})
