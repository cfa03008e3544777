import type { EngineEvent, EventListener } from './events.ts'
import { describe } from './options.ts'
import type { Unheard } from './unheard.ts'
import { warnOnce } from './warn.ts'

/** Hands events to the listener; without one, prints those that must not be lost. */
export function eventSink(onEvent: EventListener | undefined, unheard: Unheard): EventListener {
  if (onEvent === undefined) return (event) => unheard.hear(event)
  return (event) => {
    // A listener's bug must not change what happens to a payment.
    try {
      // An `async` listener fits the type too, and its rejection would end the process.
      const returned: unknown = onEvent(event)
      if (returned instanceof Promise) returned.catch((error: unknown) => threw(event, error))
    } catch (error) {
      threw(event, error)
    }
  }
}

function threw({ kind }: EngineEvent, error: unknown): void {
  const why = error instanceof Error ? error.message : describe(error)
  warnOnce(`onEvent threw on "${kind}": ${why}`, `onEvent threw on "${kind}"`)
}
