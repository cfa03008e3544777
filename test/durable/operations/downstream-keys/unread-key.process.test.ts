/** Who learns that an effect does not send its key. The tests listen to warnings of the process. */
import { afterEach, expect, it, onTestFinished, vi } from 'vitest'
import type { EngineOptions } from '../../../../src/core/engine/engine-contract.ts'
import { durableFixture, payment } from '../durable-fixture.ts'
import type { Charge } from '../provider.ts'

afterEach(() => void vi.unstubAllEnvs())

/** Without a listener, the engine prints warnings. */
const UNHEARD = { onEvent: undefined } as unknown as Partial<EngineOptions>

function setup(options: Parameters<typeof durableFixture>[0] = {}) {
  const warnings: string[] = []
  const keep = ({ message }: Error) => void warnings.push(message)
  process.on('warning', keep)
  onTestFinished(() => void process.off('warning', keep))
  const { run, events, provider } = durableFixture(options)
  const reports = () => events.filter(({ kind }) => kind === 'effect_without_key')
  /** Pays with an effect that does not read its key. */
  const pay = async (name: string, key: string) => {
    const send = async () => (await provider.charge({ amount: 1 }, key)) as Charge
    return run(payment({ send }, { name }), { amount: 1 }, key)
  }
  /** Warnings are delivered in a later turn of the event loop. */
  const warned = async () => {
    await new Promise((resolve) => setImmediate(resolve))
    return warnings.filter((message) => message.startsWith('Effect '))
  }
  return { pay, reports, warned }
}

it('an effect without its key is an event each time', async () => {
  const { pay, reports, warned } = setup()
  for (const key of ['a', 'b']) expect(await pay('heard.pay', key)).toMatchObject({ status: 201 })
  expect(reports()).toHaveLength(2)
  expect(await warned()).toEqual([])
})

it('an effect without its key is warned about once when no listener hears the event', async () => {
  const { pay, warned } = setup(UNHEARD)
  for (const key of ['a', 'b']) expect(await pay('warned.pay', key)).toMatchObject({ status: 201 })
  expect(await warned()).toEqual([
    'Effect "charge" of operation "warned.pay" sent its request without the downstreamKey, so a ' +
      'repeat may take effect twice: send the key with the request, for example with ' +
      'keyedFetch(call), or declare keyless: true.',
  ])
})

it('an effect without its key is not reported in production', async () => {
  vi.stubEnv('NODE_ENV', 'production')
  const { pay, reports, warned } = setup()
  expect(await pay('production.pay', 'a')).toMatchObject({ status: 201 })
  expect([reports(), await warned()]).toEqual([[], []])
})
