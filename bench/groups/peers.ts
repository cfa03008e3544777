/** Peers: the same work on the same servers, each set up as in its documentation. */
import type { HttpConfig } from '../programs/http.ts'
import type { SubjectConfig } from '../programs/subject.ts'
import { inParallel, type Context, type Line } from '../run/context.ts'
import type { ServerName } from '../run/servers.ts'
import { linesOf } from './http.ts'
import { subjectLines } from './subject-lines.ts'

interface Peer {
  readonly id: string
  readonly subject: string
  readonly servers: readonly ServerName[]
  readonly config: SubjectConfig
  /** Our line on the same store with the same work. */
  readonly base?: string
  readonly note: string
}

interface ExpressPeer extends Omit<Peer, 'config' | 'base'> {
  readonly config: HttpConfig
  readonly ours: 'memory' | 'redis' | 'postgres'
}

/** Features that each peer leaves out. Printed under the table. */
const STEADYKEY = 'fences by a separate read before the write; one statement for every call'
const STEADYKEY_HTTP = `${STEADYKEY}; sends the reply before it is recorded`
const NODE_IDEMPOTENCY =
  'no lease and no fence: a holder that dies keeps its key for a day; no tenant'
/** The Express package of the peer is not in every registry. */
const NODE_IDEMPOTENCY_HTTP = `${NODE_IDEMPOTENCY}; sends the reply first; mounted by its README`
const POWERTOOLS = 'no fence, no fingerprint, no tenant'
const DBOS = 'no fingerprint and no tenant; a step is recorded after it ran, nothing before it'

const TITLES = { memory: 'memory', redis: 'Redis', postgres: 'PostgreSQL' } as const

const FUNCTIONS: readonly Peer[] = [
  ...(['memory', 'redis', 'postgres'] as const).map((store): Peer => {
    return {
      id: `peers.own-${store}`,
      subject: `ours: ${TITLES[store]}`,
      servers: store === 'memory' ? [] : [store],
      config: { kind: 'own', store, fromJson: true },
      note: 'hashes the request, and converts the reply from and to JSON, as the peers do',
    }
  }),
  ...(['memory', 'redis', 'postgres'] as const).map((store): Peer => {
    return {
      id: `peers.steadykey-${store}`,
      subject: `steadykey, ${TITLES[store]}`,
      servers: store === 'memory' ? [] : [store],
      config: { kind: 'steadykey', store },
      base: `peers.own-${store}`,
      note: STEADYKEY,
    }
  }),
  ...(['memory', 'redis'] as const).map((store): Peer => {
    return {
      id: `peers.node-idempotency-${store}`,
      subject: `@node-idempotency/core, ${TITLES[store]}`,
      servers: store === 'memory' ? [] : [store],
      config: { kind: 'node-idempotency', store },
      base: `peers.own-${store}`,
      note: NODE_IDEMPOTENCY,
    }
  }),
  {
    id: 'peers.powertools-redis',
    subject: '@aws-lambda-powertools/idempotency, Redis',
    servers: ['redis'],
    config: { kind: 'powertools' },
    base: 'peers.own-redis',
    note: POWERTOOLS,
  },
  {
    id: 'peers.dbos-postgres',
    subject: 'DBOS, workflow of one step, PostgreSQL',
    servers: ['postgres'],
    config: { kind: 'dbos' },
    base: 'peers.operation-finish',
    note: DBOS,
  },
  {
    id: 'peers.operation-finish',
    subject: 'ours: operation of one phase, PostgreSQL',
    servers: ['postgres'],
    config: { kind: 'operation', phase: 'finish' },
    note: 'its phase writes a row, which commits with the reply',
  },
  {
    id: 'peers.operation-external',
    subject: 'ours: operation of one outside effect, PostgreSQL',
    servers: ['postgres'],
    config: { kind: 'operation', phase: 'external' },
    note: 'the intent is on record before the effect, its result before the reply: four commits',
  },
]

const EXPRESS: readonly ExpressPeer[] = [
  ...(['memory', 'redis', 'postgres'] as const).map((store): ExpressPeer => {
    return {
      id: `peers.express.steadykey-${store}`,
      subject: `Express, steadykey, ${TITLES[store]}`,
      servers: store === 'memory' ? [] : [store],
      config: { kind: 'steadykey', store },
      ours: store,
      note: STEADYKEY_HTTP,
    }
  }),
  ...(['memory', 'redis'] as const).map((store): ExpressPeer => {
    return {
      id: `peers.express.node-idempotency-${store}`,
      subject: `Express, @node-idempotency/core, ${TITLES[store]}`,
      servers: store === 'memory' ? [] : [store],
      config: { kind: 'node-idempotency', store },
      ours: store,
      note: NODE_IDEMPOTENCY_HTTP,
    }
  }),
  {
    id: 'peers.express.powertools-redis',
    subject: 'Express, @aws-lambda-powertools/idempotency, Redis',
    servers: ['redis'],
    config: { kind: 'powertools' },
    ours: 'redis',
    note: `${POWERTOOLS}; the route calls its function`,
  },
  {
    id: 'peers.express.express-idempotency-memory',
    subject: 'Express, express-idempotency, memory',
    servers: [],
    config: { kind: 'express-idempotency' },
    ours: 'memory',
    note:
      'no lock between reading a key and taking it, no lease, no fence, no tenant; searches an ' +
      'array for every key; sends the reply before it is recorded',
  },
]

export async function peerLines(context: Context): Promise<Line[]> {
  const inFlight = context.scale.inFlight.filter((count) => count === 1 || count === 64)
  const functions = await inParallel(FUNCTIONS, async ({ servers, ...peer }) => {
    const places = await context.servers.places(...servers)
    return subjectLines(context, {
      ...peer,
      group: 'peers',
      places,
      inFlight,
      whats: ['first', 'replay'],
    })
  })
  const routes = await inParallel(EXPRESS, ({ ours, ...peer }) =>
    linesOf(context, {
      ...peer,
      group: 'peers',
      connections: [64],
      isBare: false,
      base: (what, connections) => `http.express.${ours}.${what}.${connections}`,
    }),
  )
  return [...functions.flat(), ...routes.flat()]
}
