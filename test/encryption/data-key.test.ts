import { describe, expect, it } from 'vitest'
import { DataKey, DataKeyCache } from '../../src/encryption/data-key.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { newKey } from './contexts.ts'

const ZEROS = new Uint8Array(32)

function setup({ keysMax = 2, keptMs = 1_000 } = {}) {
  const clock = new FakeClock()
  const cache = new DataKeyCache({ clock, keysMax, keptMs })
  /** Puts a new key, and returns these bytes. */
  const put = (name: string): Uint8Array => {
    const bytes = newKey()
    const named = { keyId: 'kms', wrapped: Uint8Array.from([1]) }
    cache.put(name, new DataKey(named, bytes, clock.monotonicMs()))
    return bytes
  }
  return { clock, cache, put }
}

describe('a cache of data keys', () => {
  it('wipes the key that was longest idle when it has no room', () => {
    const { cache, put } = setup()
    const [a, b] = [put('a'), put('b')]
    cache.get('a')
    const c = put('c')
    expect(b).toEqual(ZEROS)
    expect(cache.get('b')).toBeUndefined()
    expect(bytesOf(cache.get('a')!)).toEqual(a)
    expect(bytesOf(cache.get('c')!)).toEqual(c)
    expect(a).not.toEqual(ZEROS)
  })

  it('wipes a key that another one replaces, and keeps the other one for its own time', () => {
    const { clock, cache, put } = setup()
    const first = put('a')
    clock.advance(600)
    const second = put('a')
    expect(first).toEqual(ZEROS)
    clock.advance(999)
    expect(bytesOf(cache.get('a')!)).toEqual(second)
    clock.advance(1)
    expect(second).toEqual(ZEROS)
    expect(cache.size).toBe(0)
  })

  it('wipes a key at the end of its time, even if it is used', () => {
    const { clock, cache, put } = setup()
    const bytes = put('a')
    clock.advance(999)
    expect(bytesOf(cache.get('a')!)).toEqual(bytes)
    clock.advance(1)
    expect(cache.get('a')).toBeUndefined()
    expect(bytes).toEqual(ZEROS)
  })

  it('leaves no timer behind a dropped key', () => {
    const { clock, cache, put } = setup()
    put('a')
    expect(clock.pendingTimers).toBe(1)
    cache.drop('a')
    cache.drop('a')
    expect(clock.pendingTimers).toBe(0)
  })
})

describe('a data key', () => {
  it('does not give its bytes after it was wiped', () => {
    const key = new DataKey({ keyId: 'kms', wrapped: ZEROS }, newKey(), 0)
    key.wipe()
    expect(() => key.secret).toThrow('the data key of key kms was already wiped')
    expect(() => key.copy()).toThrow('already wiped')
  })

  it('has a copy that survives it', () => {
    const bytes = newKey()
    const key = new DataKey({ keyId: 'kms', wrapped: ZEROS }, bytes, 5)
    const copy = key.copy()
    const expected = Uint8Array.from(bytes)
    key.wipe()
    expect(bytesOf(copy)).toEqual(expected)
    expect(copy.madeMs).toBe(5)
  })
})

function bytesOf(key: DataKey): Uint8Array {
  return Uint8Array.from(key.secret.export())
}
