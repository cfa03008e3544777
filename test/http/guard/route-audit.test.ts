import { expect, it } from 'vitest'
import {
  guards,
  markGuard,
  requireProtected,
  toAudit,
} from '../../../src/http/guard/route-audit.ts'

const routes = [
  { method: 'POST', path: '/a', guarded: true },
  { method: 'POST', path: '/b/:id', guarded: false },
  { method: 'PATCH', path: '/c', guarded: false },
  { method: 'GET', path: '/d', guarded: false },
  { method: 'DELETE', path: '/e', guarded: false },
]

it('the audit sorts routes that change state, by default POST and PATCH', () => {
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

it('the audit leaves out excepted routes, by exact path or by pattern', () => {
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
])('the audit refuses options that would hide every route: %s', (name, options) => {
  expect(() => toAudit(routes, options as never)).toThrow(name)
})

it('the audit recognises guards by a mark, and the methods that they protect', () => {
  const guard = markGuard(
    () => undefined,
    (method) => method === 'POST',
  )
  expect([guards(guard, 'POST'), guards(guard, 'PUT')]).toEqual([true, false])
  for (const other of [undefined, null, 'x', 42, {}, () => true]) {
    expect(guards(other, 'POST')).toBe(false)
  }
})

it('requireProtected throws when routes are unprotected, and names all of them', () => {
  expect(() => requireProtected(toAudit(routes))).toThrow('POST /b/:id, PATCH /c')
  expect(() => requireProtected({ protected: [], unprotected: [] })).not.toThrow()
})
