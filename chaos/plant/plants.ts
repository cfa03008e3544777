/** Bugs that can be planted into the service, to see whether a run finds them. */
export const PLANT_NAMES = [
  'no-fence',
  'early-ack',
  'lapse-reruns-effect',
  'no-tenant',
  'shared-answer',
  'no-turns',
] as const

export type PlantName = (typeof PLANT_NAMES)[number]

export interface Edit {
  /** Below `dist`. */
  readonly file: string
  /** Must be there exactly once: a bug that no longer fits proves nothing. */
  readonly find: string
  readonly replace: string
}

/** The commit is held up a little, so that the time between the two can be met. */
const EARLY_MS = 200

export const PLANTS: Readonly<Record<PlantName, readonly Edit[]>> = {
  /** Whoever once held a record may write to it for ever, in the store and by its own clock. */
  'no-fence': [
    {
      file: 'core/decide.js',
      find: 'return record.token === lease.token && record.attempt === lease.attempt;',
      replace: 'return record.identity === lease.identity || true;',
    },
    {
      file: 'core/decide-durable.js',
      find: 'const mayRun = (own',
      replace: 'const mayRun = (true',
    },
    {
      file: 'core/held-lease.js',
      find: 'if (!this.isHeld())\n            throw',
      replace: 'if (false)\n            throw',
    },
  ],
  /** The last step of an operation is reported as committed while it is about to be. */
  'early-ack': [
    {
      file: 'core/live-attempt.js',
      find: 'step instanceof Promise ? step.then(keep) : keep(step)',
      replace: `Promise.resolve(step).then(keep).then((kept) => kept.end?.kind === 'complete'
        ? new Promise((resolve) => setTimeout(resolve, ${EARLY_MS}, kept)) : kept)`,
    },
    {
      file: 'core/run-context.js',
      find: 'const outcome = await commit();',
      replace: `let isOver = false;
        const committing = commit().finally(() => (isOver = true));
        const early = (async () => {
          while (!isOver && endOf()?.kind !== 'complete') {
            await new Promise((resolve) => setTimeout(resolve, 5));
          }
          const expiresAt = new Date(Date.now() + 86400000);
          return isOver ? committing : { kind: 'advanced', expiresAt };
        })();
        const outcome = await Promise.race([committing, early]);`,
    },
  ],
  /** What an earlier attempt has sent is not asked for: it is sent again. */
  'lapse-reruns-effect': [
    {
      file: 'durable/external-phase.js',
      find: 'const found = await this.#askAfter(stored);',
      replace: "const found = { kind: 'not_executed' };",
    },
  ],
  /** One tenant's key is another's. */
  'no-tenant': [
    {
      file: 'core/identity.js',
      find: '`${tenant.length}:${tenant}${operation.length}',
      replace: '`${operation.length}',
    },
  ],
  /** Claims of one key that travel together get one answer, whatever they ask. */
  'shared-answer': [
    {
      file: 'core/claim-sharing.js',
      find: "${mode === 'take' ? token : ''} ${fingerprint}`",
      replace: "${mode === 'take' ? token + fingerprint : ''}`",
    },
  ],
  /** Due work is handed out by its age alone. A comparison with bad neighbours shows it. */
  'no-turns': [
    {
      file: 'core/turns.js',
      find: 'while (open.length > 0 && picks.length < limit) {',
      replace: 'while (open.length < 0) {',
    },
  ],
}

/** The source with the bug in it. Throws where it does not fit: then it would prove nothing. */
export function plantInto(source: string, { file, find, replace }: Edit): string {
  const times = source.split(find).length - 1
  if (times === 1) return source.replace(find, () => replace)
  throw new Error(`a planted bug must fit dist/${file} exactly once, and fits ${times} times`)
}
