import type { Store } from '../../core/store/store.ts'
import type { GuardOptions } from '../../http/guard/guard-options.ts'
import type { HandlerContext } from '../../http/guard/handler-context.ts'
import type { StatusOptions } from '../../http/status/status-options.ts'
import type { FakeClock } from '../fake-clock.ts'

/**
 * A framework and its adapter. The cases are independent of the framework: they describe an app,
 * send it HTTP requests, and check the replies.
 */
export interface AdapterSubject {
  /** Serves the app on the loopback interface until the test ends. */
  serve(app: CaseApp): Promise<ServedApp>
  /** Abilities that the framework lacks, each with the reason. Cases that need one are skipped. */
  readonly without?: Partial<Record<AdapterAbility, string>>
}

/** An ability that some frameworks lack. */
export type AdapterAbility =
  /** Routes with parameters, whose template names the operation. */
  | 'templates'
  /** A reply that is sent in chunks, each of which is sent before the next is produced. */
  | 'streams'
  /** A handler can be running when the client disconnects. */
  | 'disconnects'
  /** Validation by the framework, which rejects a request before the handler is called. */
  | 'validation'

export interface CaseApp {
  /** Options of all routes. */
  readonly options: CaseOptions
  readonly routes: readonly CaseRoute[]
  /** The status route. Absent if clients cannot ask for the outcome of a request. */
  readonly status?: CaseStatus
}

/** The route where clients ask for the outcome of a request. */
export interface CaseStatus {
  /** Path of the GET route, with the record id appended: `/operations/:id`. */
  readonly path: string
  readonly options: StatusOptions<CaseHead>
}

export interface ServedApp {
  /** Port of the server on the loopback interface. */
  readonly port: number
}

/** Guard options whose functions get the part of a request that every framework has. */
export type CaseOptions = GuardOptions<CaseHead>

/** The part of a request that option functions read. */
export interface CaseHead {
  /** Returns the header with this lower-case name. */
  header(name: string): string | undefined
}

export interface CaseRoute {
  /**
   * HTTP method of the route.
   * @default 'POST'
   */
  readonly method?: string
  /** Path of the route. Parameters are written as `:id`. */
  readonly path: string
  /** Options that this route overrides. `false` mounts the route without protection. */
  readonly options?: Partial<CaseOptions> | false
  /** Called by the framework's validation. The framework replies with 400 if it returns `false`. */
  readonly isValid?: (head: CaseHead) => boolean
  readonly handle: CaseHandler
}

/** Returns a reply, or throws. */
export type CaseHandler = (request: CaseRequest) => CaseReply | Promise<CaseReply>

export interface CaseRequest extends CaseHead {
  /** The context as the framework passes it. Absent if the request runs unprotected. */
  readonly idempotency: HandlerContext | undefined
  /** The JSON body as the framework parses it. */
  json(): Promise<unknown>
  /** The raw bytes of any other body. */
  bytes(): Promise<Uint8Array>
}

export interface CaseReply {
  readonly status: number
  /** Header values by name. An array is sent as several lines of one header. */
  readonly headers?: Readonly<Record<string, string | readonly string[]>>
  readonly body?: string | Uint8Array
  /** Replaces `body`. Sent chunk by chunk, as the framework streams. */
  readonly stream?: AsyncIterable<Uint8Array>
}

export interface AdapterCase {
  /** A whole statement about behaviour. Skip a case by this name. */
  readonly name: string
  readonly needs?: AdapterAbility
  readonly run: (fixture: AdapterFixture) => Promise<void>
}

export interface AdapterFixture {
  readonly subject: AdapterSubject
  /** An empty `sqliteStore` that uses `clock`. Some cases use its transactions. */
  readonly store: Store
  /** A clock that only the cases move. */
  readonly clock: FakeClock
}

/** Converts case options to framework options: their functions get the framework's request. */
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
  const names = ['tenant', 'principal', 'operation', 'keyFrom', 'requestTime']
  const adapted = adaptFunctions(options, names, headOf)
  if (options.limits === undefined) return adapted
  return { ...adapted, limits: adaptFunctions(options.limits, ['caller'], headOf) }
}

/** Converts the status options of a case: their functions get the framework's request. */
export function adaptStatusOptions<Request>(
  options: StatusOptions<CaseHead>,
  headOf: (request: Request) => CaseHead,
): StatusOptions<Request> {
  return adaptFunctions(
    options,
    ['tenant', 'principal', 'recordId'],
    headOf,
  ) as unknown as StatusOptions<Request>
}

function adaptFunctions<Request>(
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
