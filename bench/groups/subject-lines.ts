/** The lines of one subject that is called as a function. */
import type { SubjectConfig } from '../programs/subject.ts'
import type { Figures, Group } from '../report/results.ts'
import type { Load, Places } from '../run/contract.ts'
import { sleeperOf, type Context, type Line } from '../run/context.ts'

export type What = 'first' | 'replay' | 'hot'

export const WHAT_TITLES: Readonly<Record<What, string>> = {
  first: 'first requests',
  replay: 'replays',
  hot: 'replays of one key',
}

/** All subjects that are called as functions are compared: ours, the limits and the peers. */
const FAMILY = 'functions'

/** Requests in flight while a process is woken. */
const WAKING = 64

export interface SubjectEntry {
  readonly group: Group
  /** Prefix of the ids of its lines. */
  readonly id: string
  readonly subject: string
  readonly config: SubjectConfig
  readonly places: Places
  readonly inFlight: readonly number[]
  readonly whats: readonly What[]
  /** Prefix of the ids of the lines for comparison. */
  readonly base?: string
  readonly note?: string
}

export async function subjectLines(context: Context, entry: SubjectEntry): Promise<Line[]> {
  const { group, id, subject, config, places, base, note } = entry
  const { warmMs, engineWakeMs } = context.scale
  const program = await context.start('subject', { ...config, places }, `${group}: ${subject}`)
  const sleeper = sleeperOf(engineWakeMs, (ms) =>
    program.call(entry.whats[0]!, { inFlight: WAKING, ms, warmMs: 0 } satisfies Load),
  )
  return entry.whats.flatMap((what) =>
    entry.inFlight.map((inFlight): Line => {
      const loadFor = (ms: number): Load => ({ inFlight, ms, warmMs })
      return {
        id: `${id}.${what}.${inFlight}`,
        group,
        subject,
        what: WHAT_TITLES[what],
        load: `${inFlight} in flight`,
        ...(base === undefined ? {} : { base: `${base}.${what}.${inFlight}` }),
        ...(note === undefined ? {} : { note }),
        measure: async (ms) => (await program.call(what, loadFor(ms))) as Figures,
        sleeper,
        family: FAMILY,
      }
    }),
  )
}
