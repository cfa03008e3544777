import { describe, expect, it, onTestFinished } from 'vitest'
import { createEngine } from '../../src/core/engine/engine.ts'
import type { Encryption } from '../../src/core/encryption.ts'
import { withIdempotency } from '../../src/adapters/fetch/index.ts'
import { aesKeyring, envelopeKeyring } from '../../src/encryption/index.ts'
import { memoryStore } from '../../src/stores/memory/store.ts'
import { newKey } from './contexts.ts'
import { FakeKeyService } from './fake-key-service.ts'

// A guard with a keyring, as an application uses it.

function setup(encryption: Encryption) {
  const store = memoryStore()
  const engine = createEngine({ store, sweepEveryMs: 0, reapEveryMs: 0, onEvent: () => {} })
  onTestFinished(async () => {
    await engine.close()
  })
  let runs = 0
  const handler = withIdempotency(() => Response.json({ paymentId: `p_${++runs}` }), {
    engine,
    encryption,
    requireEncryption: true,
    tenant: (request) => request.headers.get('x-tenant') ?? '',
    operation: 'pay',
  })
  const pay = async (tenant: string) => {
    const headers = {
      'Idempotency-Key': '8e03978e-40d5-43e8-bc93-6894a57f9324',
      'x-tenant': tenant,
    }
    const request = new Request('https://api.example/pay', { method: 'POST', headers })
    const response = await handler(request)
    const body = (await response.json()) as { paymentId?: string; code?: string }
    return { status: response.status, body }
  }
  return { pay, runs: () => runs }
}

describe('a guard with a keyring', () => {
  it('replays of a tenant end with its key, and nothing runs again', async () => {
    const keys = new Map([
      ['acme-1', newKey()],
      ['zeta-1', newKey()],
    ])
    const keyring = aesKeyring({
      keys: (id) => keys.get(id),
      current: ({ tenant }) => `${tenant}-1`,
    })
    const { pay, runs } = setup(keyring)
    const first = { acme: await pay('acme'), zeta: await pay('zeta') }
    expect(await pay('acme')).toEqual(first.acme)
    keys.delete('acme-1')
    const refused = await pay('acme')
    expect(refused.status).toBe(409)
    expect(refused.body.code).toBe('idempotency_reply_unreadable')
    expect(await pay('zeta')).toEqual(first.zeta)
    expect(runs()).toBe(2)
  })

  it('a replay asks the key service for a data key that is not in memory', async () => {
    const { wrap, unwrap } = new FakeKeyService()
    const { pay, runs } = setup(envelopeKeyring({ wrap, unwrap, cache: { unwrappedMax: 1 } }))
    const first = await pay('acme')
    // The key of the next tenant evicts that of the first: its replay asks the service.
    await pay('zeta')
    expect(await pay('acme')).toEqual(first)
    expect(runs()).toBe(2)
  })
})
