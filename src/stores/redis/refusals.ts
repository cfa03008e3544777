import type { SharedConnection } from '../kit/shared-connection.ts'

/**
 * Answers of a server that refuses a script before its start or at its first write. `OOM` and
 * `READONLY` appear at the first write and not later. `NOPERM` is not in the list, because any
 * command of a script may cause it. ioredis repeats a command that a cluster refuses, and wraps the
 * last answer.
 */
const REFUSED = new RegExp(
  '^(?:Too many Cluster redirections\\. Last error: (?:\\w+: )?)?' +
    '(?:MOVED|ASK|TRYAGAIN|CLUSTERDOWN|MASTERDOWN|CROSSSLOT|LOADING|BUSY|READONLY|OOM|MISCONF|' +
    'NOREPLICAS|NOAUTH|NOSCRIPT|LATE) ',
)

/** Errors of commands that certainly did not run. */
const refused = new WeakSet<Error>()

/** Whether the command that failed with this error certainly did not run. */
export function isRefused(error: unknown): boolean {
  return error instanceof Error && refused.has(error)
}

/** Marks the error of a command that was not sent. */
export function markUnsent(error: Error): Error {
  refused.add(error)
  return error
}

/**
 * Repeats a command that has failed with `first`. If the first command may have run, a refusal of
 * the second one does not prove that nothing ran.
 */
export async function sendAgain<Answer>(
  first: unknown,
  send: () => Promise<Answer>,
): Promise<Answer> {
  try {
    return await send()
  } catch (error) {
    if (!isRefused(first) && error instanceof Error) refused.delete(error)
    throw error
  }
}

/**
 * Sends a command, and marks an error that proves that the command did not run. An error is not
 * marked if a connection was opened or lost during the call: ioredis repeats unanswered commands,
 * and the first copy may have run.
 */
export async function markRefusals<Answer>(
  connections: () => readonly SharedConnection[],
  send: () => Promise<Answer>,
): Promise<Answer> {
  const before = connections().map(connectionOf)
  try {
    return await send()
  } catch (error) {
    if (error instanceof Error && REFUSED.test(error.message)) {
      if (areSame(before, connections().map(connectionOf))) refused.add(error)
    }
    throw error
  }
}

function connectionOf(shared: SharedConnection): object | undefined {
  return shared.snapshot()?.connection
}

function areSame(before: readonly unknown[], after: readonly unknown[]): boolean {
  if (before.length !== after.length) return false
  return before.every((one, n) => one !== undefined && one === after[n])
}
