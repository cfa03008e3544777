import { expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { EngineOptions } from '../../../src/core/engine/engine-contract.ts'
import type { EngineEvent } from '../../../src/core/events.ts'
import type { GuardOptions } from '../../../src/http/guard/guard-options.ts'
import { createGuard } from '../../../src/http/guard/guard.ts'
import { createStatus } from '../../../src/http/status/status.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { exchangeOf, InstantHandler, ok } from './instant-handler.ts'

type Request = Readonly<Record<string, string>>

const principal = (request: Request) => request['user']
const scopeBy = 'tenant+principal+operation'

const SECRET = 's'.repeat(32)

function setup({
  hashKeys,
  ...options
}: Partial<GuardOptions<Request>> & Pick<EngineOptions, 'hashKeys'> = {}) {
  const clock = new FakeClock()
  const events: EngineEvent[] = []
  const engine = createEngine({
    store: memoryStore({ clock }),
    clock,
    onEvent: (event) => void events.push(event),
    ...(hashKeys && { hashKeys }),
  })
  const tenant = () => 'acme'
  const guard = createGuard<Request>({ engine, tenant, principal, scopeBy, ...options })
  const send = async (user: string | undefined) => {
    const request: Request = { 'idempotency-key': 'k', ...(user !== undefined && { user }) }
    const handler = new InstantHandler(ok(`reply for ${user}`))
    const answer = await guard.handle(request, exchangeOf(request), handler)
    const body = answer.kind === 'reply' ? Buffer.from(answer.reply.body).toString() : undefined
    return { kind: answer.kind, body, entered: handler.entered, handler }
  }
  const status = createStatus<Request>({ engine, tenant, principal }, (request) => request['id'])
  const ask = async (id: string, user?: string) => {
    const request: Request = { id, ...(user !== undefined && { user }) }
    return (await status.reply(request, { method: 'GET', accepted: '' })).status
  }
  return { engine, events, send, ask }
}

it('gives each user of a tenant separate keys: no user occupies the key of another', async () => {
  const { send, engine } = setup()
  expect(await send('ada')).toMatchObject({ kind: 'deliver', entered: 1 })
  expect(await send('bob')).toMatchObject({ kind: 'deliver', entered: 1 })
  expect((await send('ada')).body).toBe('reply for ada')
  expect((await send('bob')).body).toBe('reply for bob')
  const records = await engine.list({ state: 'completed' })
  expect(new Set(records.map(({ identity }) => identity)).size).toBe(2)
})

it('gives the same key of two users different downstream keys', async () => {
  const { send } = setup()
  const keys = new Set<string>()
  for (const user of ['ada', 'bob']) {
    const { handler } = await send(user)
    keys.add(handler.context!.downstreamKey('charge'))
  }
  expect(keys.size).toBe(2)
})

it('shows the principal neither in the operation of a record nor in an event', async () => {
  const { send, engine, events } = setup()
  await send('a-very-rare-name')
  await send('a-very-rare-name')
  const [record] = await engine.list({ state: 'completed' })
  expect(JSON.stringify([record, events])).not.toContain('a-very-rare-name')
})

it.each([undefined, ''])('runs nothing for the principal %j', async (user) => {
  const { send, engine } = setup()
  expect(await send(user)).toMatchObject({ kind: 'error', entered: 0 })
  expect(await engine.list({ state: 'in_progress' })).toEqual([])
})

it.each([
  ['plain', {}],
  ['hashed', { hashKeys: { secret: SECRET } }],
])('shows the status of a record with a %s key only to its user', async (kind, options) => {
  const { send, engine, ask } = setup(options)
  await send('ada')
  const [record] = await engine.list({ state: 'completed' })
  expect(await ask(record!.recordId, 'ada')).toBe(200)
  expect(await ask(record!.recordId, 'bob')).toBe(404)
  expect(await ask(record!.recordId)).toBe(404)
  expect(record!.key === 'k').toBe(kind === 'plain')
})

it.each([
  ['plain', {}],
  ['hashed', { hashKeys: { secret: SECRET } }],
])('shows a status handler with a principal no %s record without one', async (_kind, options) => {
  const { send, engine, ask } = setup({ scopeBy: 'tenant+operation', ...options })
  await send('ada')
  const [record] = await engine.list({ state: 'completed' })
  expect(await ask(record!.recordId, 'ada')).toBe(404)
})

it('requires a principal for the scope, and refuses it in the stripe profile', () => {
  const engine = createEngine({ store: memoryStore({ clock: new FakeClock() }) })
  const options = { engine, tenant: () => 'acme', scopeBy } as const
  expect(() => createGuard(options)).toThrow(/needs principal/)
  const stripe = { ...options, principal: () => 'p', profile: 'stripe' } as const
  expect(() => createGuard(stripe)).toThrow(/contradicts profile 'stripe'/)
})
