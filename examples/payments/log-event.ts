import type { EngineEvent } from 'oncekey'

/**
 * One line for each event that an operator should see. Replays and conflicts are normal: count
 * them, do not log them. No event contains a client's key.
 */
export function logEvent(event: EngineEvent): void {
  const line = lineOf(event)
  if (line !== undefined) console.error(`oncekey: ${line}`)
}

function lineOf(event: EngineEvent): string | undefined {
  switch (event.kind) {
    case 'reconcile_scheduled':
      return `outcome unknown, needs a verdict: ${about(event)} error=${event.errorCode ?? 'none'}`
    case 'store_error':
      return `the ${event.store} store failed to ${event.call}: ${messageOf(event.error)}`
    case 'breaker_changed':
      // A probe is in progress: the next event has its result.
      if (event.to === 'half_open') return undefined
      return `the breaker before the ${event.store} store is ${event.to}`
    case 'settle_fenced':
      return `work ended after its record had moved on: ${about(event)}`
    case 'settle_late':
      return `a result is not recorded yet, still trying: ${about(event)}`
    case 'settle_abandoned':
      return `a result could not be recorded: ${about(event)}`
    case 'lease_lost':
      return `a lease was lost while its work ran: ${about(event)}`
    case 'operation_failed':
      return `will be tried again: ${about(event)} error=${messageOf(event.error)}`
    case 'operation_orphaned':
      return `no worker has ${event.name} version ${event.version}: record=${event.recordId}`
    case 'reconcile_given_up':
      return `outcome still unknown, needs an operator: ${about(event)} tries=${event.tries}`
    case 'message_dead':
      return `a message needs an operator: ${event.topic} ${event.messageId}`
    case 'maintenance_failed':
      return `${event.task} failed, and is tried again: ${messageOf(event.error)}`
    case 'reply_unreadable':
      return `a recorded reply cannot be shown: ${about(event)} reason=${event.reason}`
    case 'reserve_reused':
      return `a key was used again after its record had expired: ${about(event)}`
    case 'limiter_failed':
      return `a request passed without the limit ${event.limit}: ${messageOf(event.error)}`
    case 'encryption_failed':
      return `the encryption is not available, so no work began: ${messageOf(event.error)}`
    case 'effect_without_key':
      return `an effect was sent without its key: ${about(event)} phase=${event.phase}`
    case 'unprotected_run':
      return `ran without protection: operation=${event.operation}`
    default:
      return undefined
  }
}

function about({ operation, recordId }: { operation: string; recordId: string }): string {
  return `operation=${operation} record=${recordId}`
}

function messageOf(error: unknown): string {
  const message = error instanceof Error ? error.message : String(error)
  return message.replaceAll(/\s+/g, ' ')
}
