/** Does what the plan says, and puts it right again a moment later. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { TcpProxy } from '../../test/servers/tcp-proxy.ts'
import type { Member, System } from '../system/system.ts'
import { mischiefPlan, type Mischief, type MischiefKind } from './plan.ts'

export interface Mischiefs {
  /** How often each was done. */
  readonly counts: Readonly<Record<string, number>>
  /** Until `signal` aborts; then everything that is down or stalled is brought back. */
  readonly run: (signal: AbortSignal) => Promise<void>
  /**
   * The last mischief: every connection to the database is dead, and none of its ends knows. No
   * process is started again after it, so each has to recover by itself.
   */
  readonly forgetConnections: (signal: AbortSignal) => Promise<void>
}

/** Between two cuts of one spell. */
const CUT_EVERY_MS = 80
const LAST_SILENCE_MS = 500

export function mischiefs(system: System, seed: number): Mischiefs {
  return new Troublemaker(system, seed)
}

class Troublemaker implements Mischiefs {
  readonly counts: Record<string, number> = {}
  readonly #system: System
  readonly #seed: number
  /** Who is down, stalled or being started: nobody does two things to one process at a time. */
  readonly #busy = new Set<string>()
  readonly #resting = new Map<string, number>()

  constructor(system: System, seed: number) {
    this.#system = system
    this.#seed = seed
  }

  async run(signal: AbortSignal): Promise<void> {
    const underWay = new Set<Promise<void>>()
    for (const mischief of mischiefPlan(this.#seed)) {
      await pause(mischief.pauseMs, signal)
      // Where the database is a file, its end is the end of everybody: nobody may be busy.
      const isForAll = mischief.kind === 'kill_database' && this.#system.database.url === ''
      if (isForAll) await Promise.all(underWay)
      if (signal.aborted) break
      const done = this.#do(mischief, signal)
      underWay.add(done)
      // A failure ends the run, below.
      done.then(
        () => underWay.delete(done),
        () => undefined,
      )
    }
    await Promise.all(underWay)
  }

  forgetConnections(signal: AbortSignal): Promise<void> {
    const last = {
      kind: 'silence_database',
      which: 0,
      forMs: LAST_SILENCE_MS,
      old: 'dead',
    } as const
    return this.#silence(last, signal, ({ toDatabase }) => toDatabase)
  }

  async #do(mischief: Mischief, signal: AbortSignal): Promise<void> {
    const { kind, which } = mischief
    const apis = this.#system.members.filter(({ role }) => role === 'api')
    const workers = this.#system.members.filter(({ role }) => role === 'worker')
    switch (kind) {
      case 'kill_api':
        return this.#kill(apis[which]!, mischief, signal)
      case 'kill_worker':
        return this.#kill(workers[which]!, mischief, signal)
      case 'kill_database':
        return this.#killDatabase(mischief, signal)
      case 'stall_api':
        return this.#stall(apis[which]!, mischief, signal)
      case 'stall_worker':
        return this.#stall(workers[which]!, mischief, signal)
      case 'shift_clock':
        return this.#shiftClock(mischief, signal)
      case 'cut_clients':
        return this.#cut(mischief, signal, ({ front }) => front.cutLiving())
      case 'cut_database':
        return this.#cut(mischief, signal, ({ toDatabase }) => toDatabase?.cutLiving())
      case 'cut_provider':
        return this.#cut(mischief, signal, ({ toProvider }) => toProvider.cutLiving())
      case 'silence_clients':
        return this.#silence(mischief, signal, ({ front }) => front)
      case 'silence_database':
        return this.#silence(mischief, signal, ({ toDatabase }) => toDatabase)
      case 'silence_provider':
        return this.#silence(mischief, signal, ({ toProvider }) => toProvider)
    }
  }

  async #kill(member: Member, { kind, forMs }: Mischief, signal: AbortSignal): Promise<void> {
    await this.#alone([member.name], async () => {
      this.#count(kind)
      await member.process.kill()
      await pause(forMs, signal)
      await member.process.start()
    })
  }

  /** Where the database is a file, everybody who has it open dies at the same moment. */
  async #killDatabase({ kind, forMs }: Mischief, signal: AbortSignal): Promise<void> {
    const { database, members } = this.#system
    const isFile = database.url === ''
    const met = isFile ? members : []
    await this.#alone(['database', ...met.map(({ name }) => name)], async () => {
      this.#count(kind)
      await Promise.all([database.kill(), ...met.map((member) => member.process.kill())])
      await pause(forMs, signal)
      await database.start()
      await Promise.all(met.map((member) => member.process.start()))
    })
  }

  /**
   * Past its lease. Not again soon: what it was about to send must arrive before anybody takes its
   * absence for proof.
   */
  async #stall(member: Member, { kind, forMs }: Mischief, signal: AbortSignal): Promise<void> {
    const now = performance.now()
    if (now < (this.#resting.get(member.name) ?? 0)) return
    this.#resting.set(member.name, now + 3 * forMs)
    await this.#alone([member.name], async () => {
      this.#count(kind)
      member.process.stall()
      await pause(forMs, signal)
      member.process.goOn()
    })
  }

  async #shiftClock(mischief: Mischief, signal: AbortSignal): Promise<void> {
    const { members, database } = this.#system
    const { kind, which, forMs, shiftMs, stepMs } = mischief
    // Where the database is a file, its clock is that of the machine: it steps for everybody.
    const isFile = database.url === ''
    const shifted = isFile ? members : [members[which]!, members[which + 2]!]
    const byMs = isFile ? stepMs : shiftMs
    this.#count(kind)
    await Promise.all(shifted.map((member) => member.process.shiftClock(byMs)))
    await pause(forMs, signal)
    await Promise.all(shifted.map((member) => member.process.shiftClock(0)))
  }

  async #cut(
    { kind, forMs, which }: Mischief,
    signal: AbortSignal,
    cut: (member: Member) => void,
  ): Promise<void> {
    if (kind === 'cut_database' && this.#system.database.url === '') return
    this.#count(kind)
    // Both of a role, or all: a switch fails, not a cable.
    const role = which === 0 ? 'api' : undefined
    const met = this.#system.members.filter((member) => role === undefined || member.role === role)
    for (let leftMs = forMs; ; leftMs -= CUT_EVERY_MS) {
      for (const member of met) cut(member)
      if (leftMs <= 0 || signal.aborted) return
      await pause(CUT_EVERY_MS, signal)
    }
  }

  /** Nothing passes, and no connection is closed: what hangs has to notice by itself. */
  async #silence(
    { kind, forMs, which, old }: Pick<Mischief, 'kind' | 'forMs' | 'which' | 'old'>,
    signal: AbortSignal,
    wayOf: (member: Member) => TcpProxy | undefined,
  ): Promise<void> {
    const met = which === 0 ? this.#system.members : [this.#system.members[0]!]
    const ways = met.map(wayOf).filter((way) => way !== undefined)
    // A file has no network before it.
    if (ways.length === 0) return
    await this.#alone([kind], async () => {
      this.#count(kind)
      for (const way of ways) way.silence()
      await pause(forMs, signal)
      for (const way of ways) way.resume(old)
    })
  }

  /** Skipped where one of them is busy already. */
  async #alone(names: readonly string[], run: () => Promise<void>): Promise<void> {
    if (names.some((name) => this.#busy.has(name))) return
    for (const name of names) this.#busy.add(name)
    try {
      await run()
    } finally {
      for (const name of names) this.#busy.delete(name)
    }
  }

  #count(kind: MischiefKind): void {
    this.counts[kind] = (this.counts[kind] ?? 0) + 1
  }
}

/** Ends early, and never rejects: what was done must be put right in any case. */
async function pause(ms: number, signal: AbortSignal): Promise<void> {
  await sleep(ms, undefined, { signal }).catch(() => undefined)
}
