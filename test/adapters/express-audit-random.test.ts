import type { RequestHandler } from 'express'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { auditRoutes } from '../../src/adapters/express.ts'
import { markGuard } from '../../src/http/route-audit.ts'
import { EXPRESSES, type ExpressModule } from './run-express.ts'

// However routers, guards and routes are mounted: what an audit calls protected cannot be reached
// past a guard, whatever a client writes for a path.

const SEGMENTS = {
  both: ['/a', '/A', '/b', '/:x', '/:y', '/a-:x', '/:x-b', '/:x.:y', '/a.b', '/%61'],
  'express 5': ['{/:z}', '{/a}', '/*rest'],
  'express 4': ['/:z?', '/*', '/a+', '/:x*'],
} as const

const PATHS = fc.sample(
  fc
    .array(fc.constantFrom('a', 'b', 'A', 'x', '', 'a-b', 'a.b', 'a.', '%61', '%2F', 'x-b', '-'), {
      minLength: 1,
      maxLength: 4,
    })
    .map((segments) => `/${segments.join('/')}`),
  { numRuns: 300, seed: 1 },
)

interface Layout {
  /** The guard is mounted on its path, or is all that a route has. */
  readonly guard: { readonly path: string; readonly isRoute: boolean }
  /** The route is in a router on this path. */
  readonly mount: string | undefined
  readonly route: string
  readonly strict: boolean
  readonly caseSensitive: boolean
}

/** Requests go through the app without a server: there are many of them. */
function build(express: ExpressModule, layout: Layout) {
  const seen = { guard: false, handler: false }
  const guard = markGuard<RequestHandler>(
    (_req, _res, next) => {
      seen.guard = true
      next()
    },
    () => true,
  )
  const app = express()
  if (layout.strict) app.enable('strict routing')
  if (layout.caseSensitive) app.enable('case sensitive routing')
  const handler: RequestHandler = (_req, _res, next) => {
    seen.handler = true
    next('router')
  }
  if (layout.guard.isRoute) app.post(layout.guard.path, guard)
  else app.use(layout.guard.path, guard)
  const router = express.Router()
  if (layout.mount === undefined) app.post(layout.route, handler)
  else app.use(layout.mount, router.post(layout.route, handler))
  const request = (url: string) => {
    Object.assign(seen, { guard: false, handler: false })
    const res = { setHeader: () => undefined }
    const { handle } = app as unknown as { handle(...args: unknown[]): void }
    return new Promise<typeof seen>((resolve) => {
      handle.call(app, { method: 'POST', url, headers: {} }, res, () => resolve(seen))
    })
  }
  return { app, request }
}

describe.each(EXPRESSES)('%s: an audit of whatever is mounted', (name, express) => {
  it('calls nothing protected that can be reached past its guard', async () => {
    const segments = [...SEGMENTS.both, ...SEGMENTS[name as 'express 4' | 'express 5']]
    const path = fc
      .array(fc.constantFrom(...segments), { minLength: 1, maxLength: 3 })
      .map((parts) => parts.join(''))
    const layouts = fc.record<Layout>({
      guard: fc.record({ path, isRoute: fc.boolean() }),
      mount: fc.option(path, { nil: undefined }),
      route: path,
      strict: fc.boolean(),
      caseSensitive: fc.boolean(),
    })
    let audited = 0
    const property = fc.asyncProperty(layouts, async (layout) => {
      let built
      try {
        built = build(express, layout)
      } catch {
        // Express itself takes no such path.
        return
      }
      const mounts = [layout.guard.path, ...(layout.mount === undefined ? [] : [layout.mount])]
      if (auditRoutes(built.app, { methods: ['POST'], mounts }).protected.length === 0) return
      audited++
      for (const url of PATHS) {
        const { guard, handler } = await built.request(url)
        if (handler && !guard) throw new Error(`${url} gets past the guard`)
      }
    })
    await fc.assert(property, { numRuns: 2000 })
    expect(audited).toBeGreaterThan(3)
  })
})
