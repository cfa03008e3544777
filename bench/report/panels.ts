/** The panels of the chart: Express, in which every peer can be mounted. */
import type { ChartBar, ChartPanel } from './chart.ts'

interface Bar {
  readonly label: string
  /** The line id, without the suffix for what is measured. */
  readonly id: string
  readonly kind: ChartBar['kind']
}

const BARS: readonly Bar[] = [
  { label: 'oncekey, SQLite (synchronous FULL)', id: 'http.express.sqlite-full', kind: 'own' },
  { label: 'oncekey, PostgreSQL', id: 'http.express.postgres', kind: 'own' },
  { label: 'oncekey, Redis', id: 'http.express.redis', kind: 'own' },
  { label: 'steadykey, PostgreSQL', id: 'peers.express.steadykey-postgres', kind: 'peer' },
  { label: 'steadykey, Redis', id: 'peers.express.steadykey-redis', kind: 'peer' },
  {
    label: '@node-idempotency/core, Redis',
    id: 'peers.express.node-idempotency-redis',
    kind: 'peer',
  },
  { label: 'Powertools idempotency, Redis', id: 'peers.express.powertools-redis', kind: 'peer' },
  {
    label: 'express-idempotency, memory',
    id: 'peers.express.express-idempotency-memory',
    kind: 'peer',
  },
]

const BARE: ChartBar = {
  label: 'the bare route',
  of: { line: 'http.express.bare.first.64', figure: 'rate' },
  kind: 'base',
}

export const PANELS: readonly ChartPanel[] = [
  panel('First requests through Express, 64 connections', 'first'),
  panel('Replays through Express, 64 connections', 'replay'),
]

function panel(title: string, what: 'first' | 'replay'): ChartPanel {
  const bars = BARS.map(({ label, id, kind }): ChartBar => {
    return { label, of: { line: `${id}.${what}.64`, figure: 'rate' }, kind }
  })
  return { title, unit: 'requests a second, more is better', bars: [BARE, ...bars] }
}
