import type { ActedBy } from '../core/durable-store.ts'
import { InvalidOptionsError } from '../core/errors.ts'
import { describe, rejectUnknownOptions } from '../core/options.ts'

/** An audit is read by people: a name and a reason, not a report. */
export const WHO_LENGTH_MAX = 255
export const WHY_LENGTH_MAX = 2_000

/** Whoever changes something by hand says who they are, and why. */
export function checkActedBy(where: string, by: ActedBy): ActedBy {
  rejectUnknownOptions(`${where}: by`, by, ['who', 'why'])
  return {
    who: checkText(`${where}: who`, by.who, WHO_LENGTH_MAX),
    why: checkText(`${where}: why`, by.why, WHY_LENGTH_MAX),
  }
}

function checkText(where: string, value: unknown, lengthMax: number): string {
  if (typeof value !== 'string' || value.trim() === '') {
    throw new InvalidOptionsError(
      `${where} must be given, for the audit: a text that is not empty, got ${describe(value)}`,
    )
  }
  if (value.length > lengthMax) {
    throw new InvalidOptionsError(
      `${where} has ${value.length} characters; at most ${lengthMax} are allowed`,
    )
  }
  if (value.includes('\0') || !value.isWellFormed()) {
    throw new InvalidOptionsError(`${where} must be well-formed text without NUL`)
  }
  return value
}
