import { expect, it } from 'vitest'
import { createEngine } from '../../src/core/engine.ts'
import { singleTenant, type GuardOptions } from '../../src/http/guard-options.ts'
import { createGuard } from '../../src/http/guard.ts'
import { forRoute } from '../../src/http/route-options.ts'
import { memoryStore } from '../../src/stores/memory/memory-store.ts'

const all: GuardOptions<unknown> = {
  store: memoryStore(),
  tenant: singleTenant,
  principal: () => 'ann',
  keyHeader: 'x-key',
  keySyntax: 'strict',
}

it('lets the route have the last word, and leaves the rest and the original alone', () => {
  const before = { ...all }
  const route = forRoute(all, { keyRequired: false, retentionMs: 7_200_000 })
  expect(route).toEqual({ ...all, keyRequired: false, retentionMs: 7_200_000 })
  expect(all).toEqual(before)
})

it('takes what a route leaves undefined for said by nobody', () => {
  expect(forRoute(all, { principal: undefined as never, keyField: undefined as never })).toEqual(
    all,
  )
})

it('drops what a route says in another way: where the key is, and how it is written', () => {
  const field = forRoute(all, { keyField: 'id' })
  expect(field).toMatchObject({ keyField: 'id' })
  expect(field).not.toHaveProperty('keyHeader')
  expect(field).not.toHaveProperty('keySyntax')
  expect(forRoute(field, { keyFrom: () => 'k' })).not.toHaveProperty('keyField')
  const header = forRoute(field, { keyHeader: 'y-key', keySyntax: 'strict' })
  expect(() => createGuard(header)).not.toThrow()
})

it('drops the store where a route names an engine, and the other way round', () => {
  const engine = createEngine({ store: memoryStore() })
  const route = forRoute(all, { engine })
  expect(createGuard(route).engine).toBe(engine)
  expect(createGuard(forRoute(route, { store: memoryStore() })).engine).not.toBe(engine)
})

it.each([undefined, null, 'post', 42])('refuses %j for options', (route) => {
  expect(() => forRoute(all, route as never)).toThrow("a route's options must be an object")
})

it('leaves the check of what was said to the guard', () => {
  expect(() => createGuard(forRoute(all, { keyHeadr: 'x' } as never))).toThrow('keyHeadr')
})
