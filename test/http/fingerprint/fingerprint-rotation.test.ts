/** Changes secrets in the order of `docs/reference/options.md`: no step refuses a retry. */
import { expect, it } from 'vitest'
import type { Store } from '../../../src/core/store/store.ts'
import {
  createFingerprinter,
  type FingerprintSecret,
} from '../../../src/http/fingerprint/fingerprint.ts'
import { createGuard, type Guard } from '../../../src/http/guard/guard.ts'
import { singleTenant } from '../../../src/http/guard/guard-options.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { exchangeOf, InstantHandler, ok } from '../guard/instant-handler.ts'

const DAY_MS = 24 * 60 * 60 * 1000

type Secrets = readonly FingerprintSecret[]

const a: FingerprintSecret = { id: 'a', secret: 'a'.repeat(32) }
const b: FingerprintSecret = { id: 'b', secret: new Uint8Array(16).fill(11) }
const known = (secret: FingerprintSecret): FingerprintSecret => ({ ...secret, acceptOnly: true })

/** `last` is deployed when the records of all steps before the last of `steps` have expired. */
const ORDERS: readonly [name: string, steps: readonly Secrets[], last: Secrets][] = [
  ['replacing a secret', [[a], [a, b], [b, a]], [b]],
  ['replacing a secret that is known first by acceptOnly', [[a], [a, known(b)], [b, a]], [b]],
  ['introducing the first secret', [[], [known(a)], [a]], [a]],
  ['giving secrets up', [[a], [known(a)]], []],
]

/** The guard of a node, which shares its store with the others. */
const nodeWith = (store: Store, fingerprintSecrets: Secrets) =>
  createGuard<object>({ store, tenant: singleTenant, fingerprintSecrets, retentionMs: DAY_MS })

async function send(guard: Guard<object>, key: string): Promise<string> {
  const request = { 'idempotency-key': key }
  const handler = new InstantHandler(ok('done'))
  const answer = await guard.handle(request, exchangeOf(request), handler)
  return answer.kind === 'reply' ? `replied ${answer.reply.status}` : answer.kind
}

it.each(ORDERS)('replays every earlier key on every node while %s', async (_name, steps, last) => {
  const clock = new FakeClock()
  const store = memoryStore({ clock })
  const keys: string[] = []
  const lists = [...steps, last]
  for (const [index, secrets] of lists.entries()) {
    if (index === steps.length) {
      clock.advance(DAY_MS)
      keys.length = 0
      expect(await send(nodeWith(store, steps.at(-1)!), 'renewed')).toBe('deliver')
      keys.push('renewed')
    }
    // A rolling deployment: some nodes have this step already, others still the previous one.
    const nodes = [lists[Math.max(index - 1, 0)]!, secrets].map((list) => nodeWith(store, list))
    for (const [at, node] of nodes.entries()) {
      const key = `${index}-${at}`
      expect(await send(node, key)).toBe('deliver')
      keys.push(key)
    }
    for (const node of nodes) {
      for (const key of keys) expect(`${key} ${await send(node, key)}`).toBe(`${key} replied 200`)
    }
  }
})

it('refuses a retry when a node does not know a secret that another node uses', async () => {
  const store = memoryStore()
  expect(await send(nodeWith(store, [b, a]), 'k')).toBe('deliver')
  expect(await send(nodeWith(store, [a]), 'k')).toBe('replied 422')
})

it('uses the first secret that is not accept-only', () => {
  const input = { method: 'POST', path: '/', query: '', mediaType: '' } as const
  const body = { kind: 'bytes', bytes: new Uint8Array(0) } as const
  const made = (secrets: Secrets) => createFingerprinter({ secrets }).current({ ...input, body })
  expect(made([known(a), b])).toMatch(/^v1\.b:/)
  expect(made([a, known(b)])).toMatch(/^v1\.a:/)
  expect(made([known(a)])).toMatch(/^v1:/)
})
