import type { Clock } from '../core/clock.ts'
import type { EventListener } from '../core/events.ts'
import { notePaused, type PausedWork, type WorkPart } from '../core/paused-work.ts'
import type { Store } from '../core/store.ts'

export interface PausesOptions {
  readonly part: WorkPart
  readonly clock: Clock
  readonly store: Store
  readonly emit: EventListener
  /** Records or messages of one group whose calls hang, from which on the group is paused. */
  readonly overdueMax: number
}

export interface PausesStats {
  /** Calls that run on although their time limit is over. */
  readonly overdue: number
  /** Groups of which nothing is begun, but for a try now and then. */
  readonly paused: readonly PausedWork[]
}

/** `not_run`: the work was not begun, or failed before it could show whether it hangs. */
export type WorkEnd = 'ran' | 'not_run'

/** Code that obeys its signal ends within this time, and is not worth an event. */
const OBEYS_WITHIN_MS = 1_000
/** How often a paused group tries one piece of work: each try that hangs is one more call. */
const TRY_EVERY_MS = 5 * 60_000
/** How soon to ask again where a try has found no work, or its work did not run. */
const ASK_AGAIN_MS = 1_000
/** This many times `overdueMax`, a group is tried no more: only the end of its calls helps. */
const HANGING_TIMES_MAX = 10

/** A record or message with overdue calls. */
interface Subject {
  calls: number
  /** Cancels the event that tells of it. */
  readonly cancel: () => void
}

interface Group {
  readonly subjects: Map<string, Subject>
  /** Paused from so many subjects on. Grows when a try has shown that newer work ends. */
  subjectsMax: number
  /** Calls that have become overdue so far, also those that have ended. */
  counted: number
  /** Paused by its owner for a reason of its own. */
  isHeld: boolean
  /** When the next try may be asked for. */
  tryAtMs: number
  /** One piece of work may begin although the group is paused. */
  isTryOpen: boolean
  /** `work_paused` was emitted. */
  isTold: boolean
  /** Ends the note for `engine.health()`. */
  unnote: () => void
}

/**
 * Which operations or topics are paused, and why: too many of their records or messages have calls
 * that ignore their time limit, or the owner holds them. The only place that tells of it, so that
 * two reasons at once are one pause.
 *
 * Retries of one record add calls, but no subject: one record never pauses its group.
 */
export class Pauses {
  readonly #options: PausesOptions
  readonly #groups = new Map<string, Group>()
  /** Runs of the owner. Without one, nothing is paused that would otherwise begin. */
  #uses = 0

  constructor(options: PausesOptions) {
    this.#options = options
  }

  isPaused(name: string): boolean {
    const group = this.#groups.get(name)
    return group !== undefined && isPaused(group)
  }

  /** Not paused, or asked to try one piece of work. */
  mayBegin(name: string): boolean {
    const group = this.#groups.get(name)
    return group === undefined || !isPaused(group) || group.isTryOpen
  }

  /** Of these groups, the paused ones that should try one piece of work now. */
  askTries(names: readonly string[]): string[] {
    const nowMs = this.#nowMs
    return names.filter((name) => {
      const group = this.#groups.get(name)
      if (group === undefined || !isPaused(group) || group.tryAtMs > nowMs) return false
      if (group.subjects.size >= this.#hangingMax) return false
      group.isTryOpen = true
      group.tryAtMs = nowMs + ASK_AGAIN_MS
      return true
    })
  }

  /** Work of this group begins. Returns what is to be told when the work has ended. */
  begin(name: string): (end: WorkEnd) => void {
    const group = this.#groups.get(name)
    if (group?.isTryOpen !== true) return () => undefined
    group.isTryOpen = false
    if (!isFull(group)) return () => undefined
    const { counted } = group
    group.tryAtMs = this.#nowMs + TRY_EVERY_MS
    return (end) => {
      if (end === 'not_run') group.tryAtMs = this.#nowMs + ASK_AGAIN_MS
      else if (group.counted === counted && isFull(group)) this.#goOn(name, group)
    }
  }

  /** Counts a call that runs on although its time limit is over. Returns what ends that. */
  countOverdue(name: string, id: string): () => void {
    const group = this.#groupOf(name)
    const wasFull = isFull(group)
    const subject = group.subjects.get(id) ?? this.#newSubject(name, id)
    group.subjects.set(id, subject)
    subject.calls++
    group.counted++
    if (!wasFull && isFull(group)) group.tryAtMs = this.#nowMs + TRY_EVERY_MS
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

  /** Pauses a group until the returned function is called. The caller says when it is tried. */
  hold(name: string): () => void {
    const group = this.#groupOf(name)
    group.isHeld = true
    this.#tellPaused(name, group)
    return () => {
      group.isHeld = false
      this.#changed(name, group)
    }
  }

  /** Lets `engine.health()` list what is paused here. Returns what ends that. */
  use(): () => void {
    this.#uses++
    for (const [name, group] of this.#groups) this.#note(name, group)
    let isOver = false
    return () => {
      if (isOver) return
      isOver = true
      this.#uses--
      if (this.#uses === 0) for (const group of this.#groups.values()) group.unnote()
    }
  }

  /** Tells nothing more of what is overdue now: its owner is closed. */
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
      tryAtMs: Number.NEGATIVE_INFINITY,
      isTryOpen: false,
      isTold: false,
      unnote: () => undefined,
    }
    this.#groups.set(name, group)
    return group
  }

  #newSubject(name: string, id: string): Subject {
    const tell = () => this.#tellOverdue(name, id)
    const cancel = this.#options.clock.after(OBEYS_WITHIN_MS, tell, { background: true })
    return { calls: 0, cancel }
  }

  /** A try has ended in time: what hung before it counts towards this pause no more. */
  #goOn(name: string, group: Group): void {
    const { overdueMax } = this.#options
    group.subjectsMax = Math.min(group.subjects.size + overdueMax, this.#hangingMax)
    this.#changed(name, group)
  }

  #changed(name: string, group: Group): void {
    if (isPaused(group)) return
    group.isTryOpen = false
    this.#tellResumed(name, group)
    if (group.subjects.size === 0) this.#groups.delete(name)
  }

  #tellOverdue(name: string, subject: string): void {
    const { part, emit } = this.#options
    const group = this.#groups.get(name)!
    emit({ kind: 'work_overdue', part, name, subject, overdue: callsOf(group) })
    if (isPaused(group)) this.#tellPaused(name, group)
  }

  #tellPaused(name: string, group: Group): void {
    if (group.isTold) return
    const { part, emit } = this.#options
    group.isTold = true
    this.#note(name, group)
    emit({ kind: 'work_paused', part, name, overdue: callsOf(group) })
  }

  #note(name: string, group: Group): void {
    if (!group.isTold || this.#uses === 0) return
    const { part, store } = this.#options
    group.unnote()
    group.unnote = notePaused(store, { part, name, overdue: callsOf(group) })
  }

  #tellResumed(name: string, group: Group): void {
    if (!group.isTold) return
    const { part, emit } = this.#options
    group.isTold = false
    group.unnote()
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
