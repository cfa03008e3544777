import type { Clock } from '../../core/time/clock.ts'
import type { EventListener } from '../../core/events.ts'
import { notePaused, type PausedWork, type WorkPart } from '../../core/engine/paused-work.ts'
import type { Store } from '../../core/store/store.ts'
import { MINUTE_MS } from '../../core/time/durations.ts'

export interface PausesOptions {
  readonly part: WorkPart
  readonly clock: Clock
  readonly store: Store
  readonly emit: EventListener
  /** Records or messages with overdue calls from which on their group is paused. */
  readonly overdueMax: number
}

export interface PausesStats {
  /** Calls that still run after their time limit. */
  readonly overdue: number
  /** Operations or topics that start no work, except for a trial from time to time. */
  readonly paused: readonly PausedWork[]
}

/** `not_run`: the work did not start, or failed before it could show whether it hangs. */
export type WorkEnd = 'ran' | 'not_run'

/** Code that obeys its abort signal ends within this time, and no event is emitted for it. */
const OBEYS_WITHIN_MS = 1_000
/** How often a paused group gets a trial. Rare, because a trial that hangs is one more call. */
const TRIAL_EVERY_MS = 5 * MINUTE_MS
/** The pause after a trial that found no work, or whose work did not run. */
const TRIAL_AGAIN_MS = 1_000
/** From this multiple of `overdueMax` on, a group gets no trial until overdue calls end. */
const HANGING_TIMES_MAX = 10

/** A record or message with overdue calls. */
interface Subject {
  calls: number
  /** Cancels the `work_overdue` event. */
  readonly cancel: () => void
}

interface Group {
  readonly subjects: Map<string, Subject>
  /** Paused from this many subjects on. Grows when a trial has ended in time. */
  subjectsMax: number
  /** Calls that have become overdue so far, including those that have ended since. */
  counted: number
  /** Paused by the owner through `hold`. */
  isHeld: boolean
  /** When the next trial is due. */
  trialAtMs: number
  /** One piece of work may start although the group is paused. */
  isTrialOpen: boolean
  /** `work_paused` was emitted. */
  isAnnounced: boolean
  /** Removes the group from `engine.health()`. */
  unlist: () => void
}

/**
 * Decides which operations or topics are paused: those with too many records or messages whose
 * calls ignore their time limit, and those that the owner holds. All pause events come from here,
 * so that two reasons at the same time are one pause.
 *
 * Retries of one record add calls, but no subject: one record alone never pauses its group.
 */
export class Pauses {
  readonly #options: PausesOptions
  readonly #groups = new Map<string, Group>()
  /** Runs of the owner that are in progress. Without one, `engine.health()` lists nothing. */
  #uses = 0

  constructor(options: PausesOptions) {
    this.#options = options
  }

  isPaused(name: string): boolean {
    const group = this.#groups.get(name)
    return group !== undefined && isPaused(group)
  }

  /** The group is not paused, or it has an open trial. */
  mayBegin(name: string): boolean {
    const group = this.#groups.get(name)
    return group === undefined || !isPaused(group) || group.isTrialOpen
  }

  /** Opens a trial for each of these groups that is paused and due for one. Returns them. */
  startTrials(names: readonly string[]): string[] {
    const nowMs = this.#nowMs
    return names.filter((name) => {
      const group = this.#groups.get(name)
      if (group === undefined || !isPaused(group) || group.trialAtMs > nowMs) return false
      if (group.subjects.size >= this.#hangingMax) return false
      group.isTrialOpen = true
      group.trialAtMs = nowMs + TRIAL_AGAIN_MS
      return true
    })
  }

  /** Work of this group starts. Call the returned function when it has ended. */
  begin(name: string): (end: WorkEnd) => void {
    const group = this.#groups.get(name)
    if (group?.isTrialOpen !== true) return () => undefined
    group.isTrialOpen = false
    if (!isFull(group)) return () => undefined
    const { counted } = group
    group.trialAtMs = this.#nowMs + TRIAL_EVERY_MS
    return (end) => {
      if (end === 'not_run') group.trialAtMs = this.#nowMs + TRIAL_AGAIN_MS
      else if (group.counted === counted && isFull(group)) this.#resume(name, group)
    }
  }

  /** Counts a call that still runs after its time limit. Call the returned function at its end. */
  countOverdue(name: string, id: string): () => void {
    const group = this.#groupOf(name)
    const wasFull = isFull(group)
    const subject = group.subjects.get(id) ?? this.#newSubject(name, id)
    group.subjects.set(id, subject)
    subject.calls++
    group.counted++
    if (!wasFull && isFull(group)) group.trialAtMs = this.#nowMs + TRIAL_EVERY_MS
    let isOver = false
    return () => {
      if (isOver) return
      isOver = true
      if (--subject.calls > 0) return
      subject.cancel()
      group.subjects.delete(id)
      this.#changed(name, group)
    }
  }

  isOverdue(name: string, id: string): boolean {
    return this.#groups.get(name)?.subjects.has(id) === true
  }

  /** Pauses a group until the returned function is called. The caller decides on its trials. */
  hold(name: string): () => void {
    const group = this.#groupOf(name)
    group.isHeld = true
    this.#emitPaused(name, group)
    return () => {
      group.isHeld = false
      this.#changed(name, group)
    }
  }

  /** Lists paused groups in `engine.health()` until the returned function is called. */
  use(): () => void {
    this.#uses++
    for (const [name, group] of this.#groups) this.#listInHealth(name, group)
    let isOver = false
    return () => {
      if (isOver) return
      isOver = true
      this.#uses--
      if (this.#uses === 0) for (const group of this.#groups.values()) group.unlist()
    }
  }

  /** Cancels the pending `work_overdue` events: the owner is closed. */
  stop(): void {
    for (const { subjects } of this.#groups.values()) {
      for (const { cancel } of subjects.values()) cancel()
    }
  }

  stats(): PausesStats {
    const { part } = this.#options
    const all = [...this.#groups].map(([name, group]) => ({ name, group, overdue: callsOf(group) }))
    return {
      overdue: all.reduce((sum, { overdue }) => sum + overdue, 0),
      paused: all
        .filter(({ group }) => isPaused(group))
        .map(({ name, overdue }) => ({ part, name, overdue })),
    }
  }

  get #nowMs(): number {
    return this.#options.clock.monotonicMs()
  }

  get #hangingMax(): number {
    return this.#options.overdueMax * HANGING_TIMES_MAX
  }

  #groupOf(name: string): Group {
    const known = this.#groups.get(name)
    if (known !== undefined) return known
    const group: Group = {
      subjects: new Map(),
      subjectsMax: this.#options.overdueMax,
      counted: 0,
      isHeld: false,
      trialAtMs: Number.NEGATIVE_INFINITY,
      isTrialOpen: false,
      isAnnounced: false,
      unlist: () => undefined,
    }
    this.#groups.set(name, group)
    return group
  }

  #newSubject(name: string, id: string): Subject {
    const emit = () => this.#emitOverdue(name, id)
    const cancel = this.#options.clock.after(OBEYS_WITHIN_MS, emit, { background: true })
    return { calls: 0, cancel }
  }

  /** A trial has ended in time: work that was overdue before it no longer counts. */
  #resume(name: string, group: Group): void {
    const { overdueMax } = this.#options
    group.subjectsMax = Math.min(group.subjects.size + overdueMax, this.#hangingMax)
    this.#changed(name, group)
  }

  #changed(name: string, group: Group): void {
    if (isPaused(group)) return
    group.isTrialOpen = false
    this.#emitResumed(name, group)
    if (group.subjects.size === 0) this.#groups.delete(name)
  }

  #emitOverdue(name: string, subject: string): void {
    const { part, emit } = this.#options
    const group = this.#groups.get(name)!
    emit({ kind: 'work_overdue', part, name, subject, overdue: callsOf(group) })
    if (isPaused(group)) this.#emitPaused(name, group)
  }

  #emitPaused(name: string, group: Group): void {
    if (group.isAnnounced) return
    const { part, emit } = this.#options
    group.isAnnounced = true
    this.#listInHealth(name, group)
    emit({ kind: 'work_paused', part, name, overdue: callsOf(group) })
  }

  #listInHealth(name: string, group: Group): void {
    if (!group.isAnnounced || this.#uses === 0) return
    const { part, store } = this.#options
    group.unlist()
    group.unlist = notePaused(store, { part, name, overdue: callsOf(group) })
  }

  #emitResumed(name: string, group: Group): void {
    if (!group.isAnnounced) return
    const { part, emit } = this.#options
    group.isAnnounced = false
    group.unlist()
    emit({ kind: 'work_resumed', part, name })
  }
}

function isFull({ subjects, subjectsMax }: Group): boolean {
  return subjects.size >= subjectsMax
}

function isPaused(group: Group): boolean {
  return group.isHeld || isFull(group)
}

function callsOf({ subjects }: Group): number {
  return [...subjects.values()].reduce((sum, { calls }) => sum + calls, 0)
}
