import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import type { ProviderEffect } from '../../../examples/provider/contract.ts'
import { readSettings } from '../../../examples/provider/settings.ts'
import { clientOf, dataFolder, SECRET, startProvider, startReceiver } from './scene.ts'

const main = join(import.meta.dirname, '..', '..', '..', 'examples', 'provider', 'main.ts')
const DAY_MS = 86_400_000

/** Starts the provider in a process that ends with the test. */
async function startProcess(env: Record<string, string>) {
  const child = spawn(process.execPath, [main], { env: { PATH: process.env['PATH'], ...env } })
  let errors = ''
  child.stderr.on('data', (chunk: Buffer) => {
    errors += chunk.toString()
  })
  const ended = once(child, 'close').then(([code]) => ({ code: code as number | null, errors }))
  onTestFinished(async () => {
    child.kill('SIGKILL')
    await ended
  })
  const [printed] = (await Promise.race([once(child.stdout, 'data'), ended.then(() => [])])) as [
    Buffer | undefined,
  ]
  const url = /^provider listening on (http:\/\/127\.0\.0\.1:\d+)\n$/.exec(String(printed))?.[1]
  return { ...clientOf(url ?? ''), signal: (name: NodeJS.Signals) => child.kill(name), ended }
}

it('the provider keeps its answers, late effects and webhooks after a kill -9', async () => {
  const folder = dataFolder()
  const { post, get, signal, ended } = await startProcess({
    DATA_DIR: folder,
    FAULTS: `lateSuccess=0.5,lateMaxMs=${DAY_MS}`,
    SEED: '5',
    // No process listens there.
    ...{ WEBHOOK_URLS: 'http://127.0.0.1:1/a, http://127.0.0.1:1/b', WEBHOOK_SECRET: SECRET },
  })
  const keys = Array.from({ length: 10 }, (_, index) => `k-${index}`)
  const answers = await Promise.all(keys.map((key) => post('/charges', key)))
  const answered = answers.filter(({ status }) => status === 201)
  expect(answered.length).toBeGreaterThan(0)
  expect(answered.length).toBeLessThan(keys.length)
  expect((await get('/ledger')).body.effects).toHaveLength(answered.length)
  signal('SIGKILL')
  expect((await ended).code).toBeNull()

  const receiver = await startReceiver()
  const after = await startProvider({
    dataFolder: folder,
    webhookUrls: [receiver.url],
    webhookSecret: SECRET,
    now: () => Date.now() + DAY_MS,
  })
  const effects = (await after.get('/ledger')).body.effects as ProviderEffect[]
  expect(effects.map(({ sequence }) => sequence)).toEqual(keys.map((_, index) => index + 1))
  expect(effects.map(({ key }) => key).toSorted()).toEqual(keys)
  expect(effects).toEqual(expect.arrayContaining(answered.map(({ body }) => body)))
  const isTold = ({ sequence }: ProviderEffect) =>
    receiver.received.some(
      ({ event }) => event.effect.sequence === sequence && event.type === 'effect.succeeded',
    )
  await receiver.until(() => effects.every(isTold))
})

it('the provider has every answered effect, without gaps, after a kill under load', async () => {
  const folder = dataFolder()
  const { post, signal, ended } = await startProcess({ DATA_DIR: folder })
  const answered: ProviderEffect[] = []
  const client = async (name: string) => {
    for (let index = 0; index < 1_000; index++) {
      const { status, body } = await post('/charges', `${name}-${index}`)
      if (status !== 201) return
      answered.push(body as ProviderEffect)
      if (answered.length === 40) signal('SIGKILL')
    }
  }
  await Promise.all(['a', 'b', 'c', 'd'].map(client))
  await ended

  const { get } = await startProvider({ dataFolder: folder })
  const effects = (await get('/ledger?limit=1000')).body.effects as ProviderEffect[]
  expect(effects.map(({ sequence }) => sequence)).toEqual(effects.map((_, index) => index + 1))
  expect(effects).toEqual(expect.arrayContaining(answered))
  expect(new Set(effects.map(({ key }) => key)).size).toBe(effects.length)
})

it('the provider shuts down cleanly, and answers requests in progress first', async () => {
  const { post, signal, ended } = await startProcess({
    DATA_DIR: dataFolder(),
    FAULTS: `latency=1,latencyMaxMs=${DAY_MS}`,
  })
  const slow = post('/charges', 'k-1')
  // One of the two requests waits, and the other gets its answer.
  const other = post('/charges', 'k-1')
  expect((await Promise.race([slow, other])).status).toBe(409)
  signal('SIGTERM')
  expect(new Set([(await slow).status, (await other).status])).toEqual(new Set([201, 409]))
  expect(await ended).toEqual({ code: 0, errors: '' })
})

it('the provider exits with one sentence about an invalid setting', async () => {
  const { ended } = await startProcess({ DATA_DIR: dataFolder(), PORT: 'http' })
  const errors = 'PORT must be a number from 0 to 65535, got "http".\n'
  expect(await ended).toEqual({ code: 1, errors })
})

it('the provider reads its settings from the environment', () => {
  expect(readSettings({})).toEqual({ dataFolder: './data', faults: {}, webhookUrls: [] })
  const env = {
    ...{ PORT: '4000', DATA_DIR: '/d', KEY_RETENTION_MS: '0', SEED: '7', WEBHOOK_SECRET: 's' },
    ...{ FAULTS: 'latency=0.1', WEBHOOK_URLS: 'http://a/, http://b/' },
  }
  expect(readSettings(env)).toEqual({
    ...{ port: 4000, dataFolder: '/d', keyRetentionMs: 0, seed: '7', webhookSecret: 's' },
    ...{ faults: { latency: 0.1 }, webhookUrls: ['http://a/', 'http://b/'] },
  })
})

it.each([
  [{ PORT: '65536' }, 'PORT must be a number from 0 to 65535, got "65536".'],
  [{ KEY_RETENTION_MS: '-1' }, 'KEY_RETENTION_MS must be a number from 0 to '],
  [{ FAULTS: 'x=1' }, 'FAULTS: There is no fault called "x". There are: '],
  [{ WEBHOOK_URLS: 'http://a/' }, 'WEBHOOK_URLS needs WEBHOOK_SECRET'],
])('the provider refuses the settings %o', (env, message) => {
  expect(() => readSettings(env)).toThrow(message)
})
