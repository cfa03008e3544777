import type { RequestHandler } from 'express'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { auditRoutes } from '../../../src/adapters/express/index.ts'
import { markGuard } from '../../../src/http/guard/route-audit.ts'
import { EXPRESSES, type ExpressModule } from '../run-express.ts'

// For random layouts of routers, guards and routes, and any spelling of a path: no request reaches
// a route that the audit calls protected without passing a guard.

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
  /** The guard is mounted on its path, or is the only handler of a route. */
  readonly guard: { readonly path: string; readonly isRoute: boolean }
  /** The route is in a router on this path. */
  readonly mount: string | undefined
  readonly route: string
  readonly strict: boolean
  readonly caseSensitive: boolean
}

/** Requests go through the app without a server, because there are many of them. */
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

describe.each(EXPRESSES)('%s: an audit of random layouts', (name, express) => {
  it('lists a route as protected only if every request to it passes a guard', async () => {
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
        // Express rejects this path.
        return
      }
      const mounts = [layout.guard.path, ...(layout.mount === undefined ? [] : [layout.mount])]
      if (auditRoutes(built.app, { methods: ['POST'], mounts }).protected.length === 0) return
      audited++
      for (const url of PATHS) {
        const { guard, handler } = await built.request(url)
        if (handler && !guard)
          throw new Error(`${url} reaches the handler without passing the guard`)
      }
    })
    await fc.assert(property, { numRuns: 2000 })
    expect(audited).toBeGreaterThan(3)
  })
})
