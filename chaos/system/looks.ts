/**
 * When an unknown outcome was queried. No store records that, so the service prints a line for each
 * query, and the run reads the lines from its logs.
 */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Extension } from '../../examples/payments/extension.ts'
import type { MoneyEffect } from '../../examples/payments/provider/provider-effects.ts'

export interface Look {
  readonly recordId: string
  /** When the effect was sent last, by the clock of the database. */
  readonly sentMs: number
  readonly lookedMs: number
}

const LINE = /^chaos look (\S+) (\d+) (\d+)$/gm

export function notingLooks(extension: Extension): Extension {
  return {
    ...extension,
    effects: (own) => {
      const { charge, hold, capture, refund, payout } = extension.effects(own)
      return {
        charge: noting(charge),
        hold: noting(hold),
        capture: noting(capture),
        refund: noting(refund),
        payout: noting(payout),
      }
    },
  }
}

function noting(effect: MoneyEffect): MoneyEffect {
  return {
    ...effect,
    reconcile: (asked) => {
      // The run shifts `Date`, so it is not used here.
      const nowMs = Math.round(performance.timeOrigin + performance.now())
      console.log(`chaos look ${asked.recordId} ${asked.sentAt.getTime()} ${nowMs}`)
      return effect.reconcile!(asked)
    },
  }
}

/** The first query after each sending, by the processes with these names. */
export function readLooks(logFolder: string, names: readonly string[]): Look[] {
  const first = new Map<string, Look>()
  for (const name of names) {
    const log = readFileSync(join(logFolder, `${name}.log`), 'utf8')
    for (const [, recordId, sent, looked] of log.matchAll(LINE)) {
      const look = { recordId: recordId!, sentMs: Number(sent), lookedMs: Number(looked) }
      const known = first.get(`${recordId} ${sent}`)
      if (known === undefined || look.lookedMs < known.lookedMs) {
        first.set(`${recordId} ${sent}`, look)
      }
    }
  }
  return [...first.values()]
}
