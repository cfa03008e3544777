import { expect, it } from 'vitest'
import { guards, markGuard, requireProtected, toAudit } from '../../src/http/route-audit.ts'

const routes = [
  { method: 'POST', path: '/a', guarded: true },
  { method: 'POST', path: '/b/:id', guarded: false },
  { method: 'PATCH', path: '/c', guarded: false },
  { method: 'GET', path: '/d', guarded: false },
  { method: 'DELETE', path: '/e', guarded: false },
]

it('sorts routes that change something, by default by POST and PATCH', () => {
  expect(toAudit(routes)).toEqual({
    protected: [{ method: 'POST', path: '/a' }],
    unprotected: [
      { method: 'POST', path: '/b/:id' },
      { method: 'PATCH', path: '/c' },
    ],
  })
  expect(toAudit(routes, { methods: ['DELETE'] }).unprotected).toEqual([
    { method: 'DELETE', path: '/e' },
  ])
})

it('leaves out what is excepted, by its very path or by a pattern', () => {
  const except = ['/c', /^\/b\//gy]
  for (let n = 0; n < 2; n++) expect(toAudit(routes, { except }).unprotected).toEqual([])
  expect(toAudit(routes, { except: ['/b'] }).unprotected).toHaveLength(2)
})

it.each([
  ['methods', { methods: ['post'] }],
  ['methods', { methods: [] }],
  ['methods', { methods: 'POST' }],
  ['except', { except: '/a' }],
  ['except', { except: [42] }],
  ['exept', { exept: [] }],
])('refuses options that would hide everything: %s', (name, options) => {
  expect(() => toAudit(routes, options as never)).toThrow(name)
})

it('knows guards by a mark, and for which methods they are', () => {
  const guard = markGuard(
    () => undefined,
    (method) => method === 'POST',
  )
  expect([guards(guard, 'POST'), guards(guard, 'PUT')]).toEqual([true, false])
  for (const other of [undefined, null, 'x', 42, {}, () => true]) {
    expect(guards(other, 'POST')).toBe(false)
  }
})

it('stops where a route is open, and names all of them', () => {
  expect(() => requireProtected(toAudit(routes))).toThrow('POST /b/:id, PATCH /c')
  expect(() => requireProtected({ protected: [], unprotected: [] })).not.toThrow()
})
