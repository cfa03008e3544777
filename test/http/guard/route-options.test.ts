import { expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { singleTenant, type GuardOptions } from '../../../src/http/guard/guard-options.ts'
import { createGuard } from '../../../src/http/guard/guard.ts'
import { forRoute } from '../../../src/http/guard/route-options.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'

const all: GuardOptions<unknown> = {
  store: memoryStore(),
  tenant: singleTenant,
  principal: () => 'ann',
  keyHeader: 'x-key',
  keySyntax: 'strict',
}

it('a route overrides options, and leaves the others and the original unchanged', () => {
  const before = { ...all }
  const route = forRoute(all, { keyRequired: false, retentionMs: 7_200_000 })
  expect(route).toEqual({ ...all, keyRequired: false, retentionMs: 7_200_000 })
  expect(all).toEqual(before)
})

it('an undefined option of a route does not override', () => {
  expect(forRoute(all, { principal: undefined as never, keyField: undefined as never })).toEqual(
    all,
  )
})

it("a route option replaces all options that name the key's place or syntax", () => {
  const field = forRoute(all, { keyField: 'id' })
  expect(field).toMatchObject({ keyField: 'id' })
  expect(field).not.toHaveProperty('keyHeader')
  expect(field).not.toHaveProperty('keySyntax')
  expect(forRoute(field, { keyFrom: () => 'k' })).not.toHaveProperty('keyField')
  const header = forRoute(field, { keyHeader: 'y-key', keySyntax: 'strict' })
  expect(() => createGuard(header)).not.toThrow()
})

it('an engine of a route replaces the store, and a store replaces the engine', () => {
  const engine = createEngine({ store: memoryStore() })
  const route = forRoute(all, { engine })
  expect(createGuard(route).engine).toBe(engine)
  expect(createGuard(forRoute(route, { store: memoryStore() })).engine).not.toBe(engine)
})

it.each([undefined, null, 'post', 42])('refuses %j in place of route options', (route) => {
  expect(() => forRoute(all, route as never)).toThrow("a route's options must be an object")
})

it('the guard validates the options of a route, not forRoute', () => {
  expect(() => createGuard(forRoute(all, { keyHeadr: 'x' } as never))).toThrow('keyHeadr')
})
