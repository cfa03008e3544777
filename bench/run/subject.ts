import { REPLY_TEXT } from './work.ts'

/** Protection against a second run under one key: ours, a peer's, or bare statements. */
export interface Subject {
  /** Runs the work under the key, or returns the reply of an earlier run. */
  readonly run: (key: string) => Promise<unknown>
  /** The text of a reply, if it is more than bytes or JSON. */
  readonly textOf?: (reply: unknown) => string
  /** Removes all keys, if they would fill the memory of the machine. */
  readonly reset?: () => Promise<void>
  readonly close: () => Promise<void>
}

/** Counts the runs of the work, to check that a subject protects it. */
export class Counter {
  runs = 0
}

/**
 * A subject that fails, or runs everything, is fast. So it has to prove first that a new key runs
 * the work once, and that the same key gets the same bytes without a run.
 */
export async function prove(subject: Subject, counter: Counter, key: string): Promise<void> {
  const before = counter.runs
  const first = textOf(subject, await subject.run(key))
  expectEqual('runs after the first request', counter.runs - before, 1)
  expectEqual('the first reply', first, REPLY_TEXT)
  const again = textOf(subject, await subject.run(key))
  expectEqual('runs after the replay', counter.runs - before, 1)
  expectEqual('the replayed reply', again, REPLY_TEXT)
}

export function expectEqual(what: string, got: unknown, wanted: unknown): void {
  if (got === wanted) return
  throw new Error(`${what}: expected ${String(wanted)}, got ${String(got)}`)
}

function textOf(subject: Subject, reply: unknown): string {
  if (subject.textOf !== undefined) return subject.textOf(reply)
  if (typeof reply === 'string') return reply
  return reply instanceof Uint8Array ? Buffer.from(reply).toString() : JSON.stringify(reply)
}
