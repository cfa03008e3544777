/** Applies the disruptions of the plan, and ends each after its time. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { TcpProxy } from '../../test/servers/tcp-proxy.ts'
import type { Member, System } from '../system/system.ts'
import { disruptionPlan, type Disruption, type DisruptionKind } from './disruption-plan.ts'

export interface Disruptions {
  /** How often each disruption was applied. */
  readonly counts: Readonly<Record<string, number>>
  /** Runs until `signal` aborts; then everything that is down or stalled is restored. */
  readonly run: (signal: AbortSignal) => Promise<void>
  /**
   * The last disruption: every connection to the database is dead without either end knowing. No
   * process is restarted after it, so each has to recover without help.
   */
  readonly forgetConnections: (signal: AbortSignal) => Promise<void>
}

/** Time between two cuts of one disruption. */
const CUT_EVERY_MS = 80
const LAST_SILENCE_MS = 500

export function disruptions(system: System, seed: number): Disruptions {
  return new DisruptionRunner(system, seed)
}

class DisruptionRunner implements Disruptions {
  readonly counts: Record<string, number> = {}
  readonly #system: System
  readonly #seed: number
  /** Processes that are down, stalled or starting: each has at most one disruption at a time. */
  readonly #busy = new Set<string>()
  readonly #resting = new Map<string, number>()

  constructor(system: System, seed: number) {
    this.#system = system
    this.#seed = seed
  }

  async run(signal: AbortSignal): Promise<void> {
    const underWay = new Set<Promise<void>>()
    for (const disruption of disruptionPlan(this.#seed)) {
      await pause(disruption.pauseMs, signal)
      // If the database is a file, killing it kills all processes, so none may be busy.
      const isForAll = disruption.kind === 'kill_database' && this.#system.database.url === ''
      if (isForAll) await Promise.all(underWay)
      if (signal.aborted) break
      const done = this.#do(disruption, signal)
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

  async #do(disruption: Disruption, signal: AbortSignal): Promise<void> {
    const { kind, which } = disruption
    const apis = this.#system.members.filter(({ role }) => role === 'api')
    const workers = this.#system.members.filter(({ role }) => role === 'worker')
    switch (kind) {
      case 'kill_api':
        return this.#kill(apis[which]!, disruption, signal)
      case 'kill_worker':
        return this.#kill(workers[which]!, disruption, signal)
      case 'kill_database':
        return this.#killDatabase(disruption, signal)
      case 'stall_api':
        return this.#stall(apis[which]!, disruption, signal)
      case 'stall_worker':
        return this.#stall(workers[which]!, disruption, signal)
      case 'shift_clock':
        return this.#shiftClock(disruption, signal)
      case 'cut_clients':
        return this.#cut(disruption, signal, ({ front }) => front.cutLiving())
      case 'cut_database':
        return this.#cut(disruption, signal, ({ toDatabase }) => toDatabase?.cutLiving())
      case 'cut_provider':
        return this.#cut(disruption, signal, ({ toProvider }) => toProvider.cutLiving())
      case 'silence_clients':
        return this.#silence(disruption, signal, ({ front }) => front)
      case 'silence_database':
        return this.#silence(disruption, signal, ({ toDatabase }) => toDatabase)
      case 'silence_provider':
        return this.#silence(disruption, signal, ({ toProvider }) => toProvider)
    }
  }

  async #kill(member: Member, { kind, forMs }: Disruption, signal: AbortSignal): Promise<void> {
    await this.#alone([member.name], async () => {
      this.#count(kind)
      await member.process.kill()
      await pause(forMs, signal)
      await member.process.start()
    })
  }

  /** If the database is a file, all processes that have it open are killed at once. */
  async #killDatabase({ kind, forMs }: Disruption, signal: AbortSignal): Promise<void> {
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
   * Stalls a process past its lease. Not repeated soon: its delayed requests must arrive before
   * their absence counts as proof.
   */
  async #stall(member: Member, { kind, forMs }: Disruption, signal: AbortSignal): Promise<void> {
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

  async #shiftClock(disruption: Disruption, signal: AbortSignal): Promise<void> {
    const { members, database } = this.#system
    const { kind, which, forMs, shiftMs, stepMs } = disruption
    // If the database is a file, its clock is that of the machine, so it changes for all processes.
    const isFile = database.url === ''
    const shifted = isFile ? members : [members[which]!, members[which + 2]!]
    const byMs = isFile ? stepMs : shiftMs
    this.#count(kind)
    await Promise.all(shifted.map((member) => member.process.shiftClock(byMs)))
    await pause(forMs, signal)
    await Promise.all(shifted.map((member) => member.process.shiftClock(0)))
  }

  async #cut(
    { kind, forMs, which }: Disruption,
    signal: AbortSignal,
    cut: (member: Member) => void,
  ): Promise<void> {
    if (kind === 'cut_database' && this.#system.database.url === '') return
    this.#count(kind)
    // Both processes of a role, or all: a switch fails, not a cable.
    const role = which === 0 ? 'api' : undefined
    const met = this.#system.members.filter((member) => role === undefined || member.role === role)
    for (let leftMs = forMs; ; leftMs -= CUT_EVERY_MS) {
      for (const member of met) cut(member)
      if (leftMs <= 0 || signal.aborted) return
      await pause(CUT_EVERY_MS, signal)
    }
  }

  /** Nothing passes, and no connection is closed: processes have to detect it by timeouts. */
  async #silence(
    { kind, forMs, which, old }: Pick<Disruption, 'kind' | 'forMs' | 'which' | 'old'>,
    signal: AbortSignal,
    wayOf: (member: Member) => TcpProxy | undefined,
  ): Promise<void> {
    const met = which === 0 ? this.#system.members : [this.#system.members[0]!]
    const ways = met.map(wayOf).filter((way) => way !== undefined)
    // A file has no network in front of it.
    if (ways.length === 0) return
    await this.#alone([kind], async () => {
      this.#count(kind)
      for (const way of ways) way.silence()
      await pause(forMs, signal)
      for (const way of ways) way.resume(old)
    })
  }

  /** Skipped if one of the processes is busy. */
  async #alone(names: readonly string[], run: () => Promise<void>): Promise<void> {
    if (names.some((name) => this.#busy.has(name))) return
    for (const name of names) this.#busy.add(name)
    try {
      await run()
    } finally {
      for (const name of names) this.#busy.delete(name)
    }
  }

  #count(kind: DisruptionKind): void {
    this.counts[kind] = (this.counts[kind] ?? 0) + 1
  }
}

/** Ends early without rejecting, because every disruption must be ended in any case. */
async function pause(ms: number, signal: AbortSignal): Promise<void> {
  await sleep(ms, undefined, { signal }).catch(() => undefined)
}
