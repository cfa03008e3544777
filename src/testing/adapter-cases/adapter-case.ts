import type { Store } from '../../core/store.ts'
import type { GuardOptions } from '../../http/guard-options.ts'
import type { HandlerContext } from '../../http/handler-context.ts'
import type { StatusOptions } from '../../http/status-options.ts'
import type { FakeClock } from '../fake-clock.ts'

/**
 * A framework and our adapter for it, as the cases see them. They know no framework: they describe
 * an app, send it real requests, and look at what comes back.
 */
export interface AdapterSubject {
  /** Serves the app on the loopback, until the test ends. */
  serve(app: CaseApp): Promise<ServedApp>
  /** What the framework has no way to do, and why. Its cases are skipped by that reason. */
  readonly without?: Partial<Record<AdapterAbility, string>>
}

/** What some frameworks cannot do. */
export type AdapterAbility =
  /** Routes with parameters, whose template tells the operation. */
  | 'templates'
  /** A reply sent in pieces, each of which leaves before the next is made. */
  | 'streams'
  /** A client that goes away while the handler runs. */
  | 'disconnects'
  /** Validation of its own, which refuses a request before the handler function is entered. */
  | 'validation'

export interface CaseApp {
  /** What holds for all routes. */
  readonly options: CaseOptions
  readonly routes: readonly CaseRoute[]
  /** Absent where clients cannot ask what became of a request. */
  readonly status?: CaseStatus
}

/** Where clients ask what became of a request. */
export interface CaseStatus {
  /** GET is served for this path with an id behind it: `/operations/:id`. */
  readonly path: string
  readonly options: StatusOptions<CaseHead>
}

export interface ServedApp {
  /** Of a server on the loopback. */
  readonly port: number
}

/** The options of an adapter; its functions are given what every framework can tell. */
export type CaseOptions = GuardOptions<CaseHead>

/** The part of a request that options look at. */
export interface CaseHead {
  /** By lower-case name. */
  header(name: string): string | undefined
}

export interface CaseRoute {
  /** @default 'POST' */
  readonly method?: string
  /** Parameters are written `:id`. */
  readonly path: string
  /** What this route says differently. `false`: it is mounted without protection. */
  readonly options?: Partial<CaseOptions> | false
  /** Asked by the framework's own validation. `false`: it replies with 400. */
  readonly isValid?: (head: CaseHead) => boolean
  readonly handle: CaseHandler
}

/** Returns its reply, or throws. */
export type CaseHandler = (request: CaseRequest) => CaseReply | Promise<CaseReply>

export interface CaseRequest extends CaseHead {
  /** The way the framework hands it out; absent where the request was let through. */
  readonly idempotency: HandlerContext | undefined
  /** As the framework's own parser leaves a JSON body. */
  json(): Promise<unknown>
  /** The bytes of any other body. */
  bytes(): Promise<Uint8Array>
}

export interface CaseReply {
  readonly status: number
  /** Several lines of one header are an array. */
  readonly headers?: Readonly<Record<string, string | readonly string[]>>
  readonly body?: string | Uint8Array
  /** In place of a body: sent piece by piece, the way the framework streams. */
  readonly stream?: AsyncIterable<Uint8Array>
}

export interface AdapterCase {
  /** A sentence about behaviour. Also the name to skip it by. */
  readonly name: string
  readonly needs?: AdapterAbility
  readonly run: (fixture: AdapterFixture) => Promise<void>
}

export interface AdapterFixture {
  readonly subject: AdapterSubject
  /** Fresh and empty, and it goes by `clock`. A `sqliteStore`: some cases use its transactions. */
  readonly store: Store
  /** Stands still until a case moves it. */
  readonly clock: FakeClock
}

/** The options of a framework, from those of a case: its functions get the framework's request. */
export function adaptOptions<Request>(
  options: CaseOptions,
  headOf: (request: Request) => CaseHead,
): GuardOptions<Request>
export function adaptOptions<Request>(
  options: Partial<CaseOptions>,
  headOf: (request: Request) => CaseHead,
): Partial<GuardOptions<Request>>
export function adaptOptions<Request>(
  options: Partial<CaseOptions>,
  headOf: (request: Request) => CaseHead,
): Partial<GuardOptions<Request>> {
  return adapted(options, ['tenant', 'principal', 'operation', 'keyFrom'], headOf)
}

/** The same for those of a status handler. */
export function adaptStatusOptions<Request>(
  options: StatusOptions<CaseHead>,
  headOf: (request: Request) => CaseHead,
): StatusOptions<Request> {
  return adapted(options, ['tenant', 'recordId'], headOf) as unknown as StatusOptions<Request>
}

function adapted<Request>(
  options: object,
  names: readonly string[],
  headOf: (request: Request) => CaseHead,
): Record<string, unknown> {
  const all: Record<string, unknown> = { ...options }
  for (const name of names) {
    const given = all[name]
    if (typeof given !== 'function') continue
    const ask = given as (head: CaseHead) => unknown
    all[name] = (request: Request) => ask(headOf(request))
  }
  return all
}
