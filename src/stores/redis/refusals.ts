import type { SharedConnection } from '../../core/shared-connection.ts'

/**
 * Answers with which a server refuses a script before it runs, or at its first write. `OOM` and
 * `READONLY` are told of the first write only; `NOPERM` may be told of any command, and is not
 * here. ioredis repeats what clusters refuse, and wraps the last answer.
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

/** Notes the error of a command that was not sent. */
export function unsent(error: Error): Error {
  refused.add(error)
  return error
}

/**
 * Sends again what has failed with `first`. Where that sending may have run, a refusal of this one
 * does not say that nothing ran.
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
 * Sends a command and notes an error that says that it did not run, unless a connection was opened
 * or lost meanwhile: ioredis sends what was not answered again, and the first sending may have run.
 */
export async function notingRefusals<Answer>(
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
  return shared.look()?.connection
}

function areSame(before: readonly unknown[], after: readonly unknown[]): boolean {
  if (before.length !== after.length) return false
  return before.every((one, n) => one !== undefined && one === after[n])
}
