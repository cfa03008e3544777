const FIRST_MS = 1_000
const MAX_MS = 5 * 60_000

/** How long a worker leaves a failed operation alone: doubles with every attempt. */
export function resumeAfterMs(attempt: number): number {
  return Math.min(MAX_MS, FIRST_MS * 2 ** Math.min(20, Math.max(0, attempt - 1)))
}
