import type { KeyedRequest, LateEffect, Ledger } from './ledger.ts'

export interface LateEffectsOptions {
  readonly ledger: Ledger
  readonly now: () => number
  /** Called when an effect was committed. */
  readonly onEffect: () => void
  readonly onError: (error: unknown) => void
}

export interface LateEffects {
  /** Returns false if there are too many already, and schedules nothing. */
  postpone(request: KeyedRequest, afterMs: number): boolean
  /** Continues after a restart: overdue effects are made before this returns. */
  restore(): void
  /** Stops the timers. Scheduled effects stay on the disk. */
  close(): void
}

const PENDING_MAX = 1_000
/** Pause after a disk error. */
const RETRY_MS = 1_000

/** Effects that happen after their request was answered with an error. */
export function createLateEffects(options: LateEffectsOptions): LateEffects {
  const { ledger, now, onEffect, onError } = options
  const timers = new Map<string, NodeJS.Timeout>()
  let isClosed = false

  const perform = (key: string): void => {
    timers.delete(key)
    try {
      ledger.performLate(key)
    } catch (error) {
      onError(error)
      schedule({ key, dueMs: now() + RETRY_MS })
      return
    }
    onEffect()
  }
  const schedule = ({ key, dueMs }: LateEffect): void => {
    // A request may end while the provider stops: the next start makes its effect.
    if (isClosed) return
    const timer = setTimeout(() => perform(key), Math.max(0, dueMs - now()))
    timers.set(key, timer)
  }

  return {
    postpone(request, afterMs) {
      if (timers.size >= PENDING_MAX) return false
      schedule(ledger.postpone(request, afterMs))
      return true
    },
    restore() {
      for (const late of ledger.listLate()) {
        if (late.dueMs <= now()) ledger.performLate(late.key)
        else schedule(late)
      }
    },
    close() {
      isClosed = true
      for (const timer of timers.values()) clearTimeout(timer)
    },
  }
}
