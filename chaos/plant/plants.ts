/** Bugs that can be planted into the service, to test that a run finds them. */
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
  /** Path below `dist`. */
  readonly file: string
  /** Must occur exactly once: a bug that no longer fits proves nothing. */
  readonly find: string
  readonly replace: string
}

/** Delays the commit, so that a disruption can hit the time between the two. */
const EARLY_MS = 200

export const PLANTS: Readonly<Record<PlantName, readonly Edit[]>> = {
  /** A former holder may write to a record indefinitely, in the store and by its own clock. */
  'no-fence': [
    {
      file: 'core/record/decide.js',
      find: 'return record.token === lease.token && record.attempt === lease.attempt;',
      replace: 'return record.identity === lease.identity || true;',
    },
    {
      file: 'stores/kit/decide-durable.js',
      find: 'const mayRun = (own',
      replace: 'const mayRun = (true',
    },
    {
      file: 'core/attempt/held-lease.js',
      find: 'if (!this.isHeld())\n            throw',
      replace: 'if (false)\n            throw',
    },
  ],
  /** The last step of an operation is reported as committed before it is. */
  'early-ack': [
    {
      file: 'core/attempt/operation-attempt.js',
      find: 'step instanceof Promise ? step.then(keep) : keep(step)',
      replace: `Promise.resolve(step).then(keep).then((kept) => kept.end?.kind === 'complete'
        ? new Promise((resolve) => setTimeout(resolve, ${EARLY_MS}, kept)) : kept)`,
    },
    {
      file: 'core/attempt/operation-attempt.js',
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
  /** The effect of an earlier attempt is not queried: it is sent again. */
  'lapse-reruns-effect': [
    {
      file: 'durable/operations/external-phase.js',
      find: 'const found = await this.#findEarlierSend(stored, plain);',
      replace: "const found = { kind: 'not_executed' };",
    },
  ],
  /** Keys are shared between tenants and their users. */
  'no-tenant': [
    {
      file: 'http/guard/guard.js',
      find: 'checkPrincipal(await principal(request))',
      replace: "'everyone'",
    },
    {
      file: 'core/record/identity.js',
      find: '`${tenant.length}:${tenant}${operation.length}',
      replace: '`${operation.length}',
    },
  ],
  /** Claims of one key in one batch get one answer, even with different fingerprints. */
  'shared-answer': [
    {
      file: 'core/store/claim-sharing.js',
      find: "${mode === 'take' ? token : ''} ${fingerprint}`",
      replace: "${mode === 'take' ? token + fingerprint : ''}`",
    },
  ],
  /** Due work is handed out by its age alone. A comparison with bad neighbours shows it. */
  'no-turns': [
    {
      file: 'stores/kit/turns.js',
      find: 'while (open.length > 0 && picks.length < limit) {',
      replace: 'while (open.length < 0) {',
    },
  ],
}

/** Returns the source with the bug. Throws if the edit does not fit exactly once. */
export function plantInto(source: string, { file, find, replace }: Edit): string {
  const times = source.split(find).length - 1
  if (times === 1) return source.replace(find, () => replace)
  throw new Error(`a planted bug must fit dist/${file} exactly once, and fits ${times} times`)
}
