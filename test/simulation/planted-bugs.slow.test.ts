// Takes about 51 s.
/**
 * Tests the checks: each bug below is planted into a copy of the sources, and the simulation or
 * the named test must fail there. A patch that no longer fits the sources fails too, so this list
 * stays up to date.
 */
import { spawn } from 'node:child_process'
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it } from 'vitest'

interface PlantedBug {
  readonly name: string
  readonly file: string
  readonly find: string
  readonly replace: string
  /** A second change in the same file. */
  readonly also?: { readonly find: string; readonly replace: string }
  /** The check that must fail. */
  readonly caughtBy: 'the simulation' | `test/${string}.test.ts`
}

const SIMULATION = 'the simulation'
/** The rarest bug is found in about one history of a thousand. */
const HISTORIES_MAX = 10_000

const BUGS: readonly PlantedBug[] = [
  {
    name: 'the fence is removed',
    file: 'src/core/record/decide.ts',
    find: 'return record.token === lease.token && record.attempt === lease.attempt',
    replace: 'return record.identity === lease.identity',
    caughtBy: SIMULATION,
  },
  {
    name: 'the mismatch is checked after the state',
    file: 'src/core/record/decide.ts',
    find: 'if (record.fingerprint !== request.fingerprint) return',
    replace:
      "if (record.fingerprint !== request.fingerprint && record.state === 'completed') return",
    caughtBy: 'test/stores/memory/store-cases.test.ts',
  },
  {
    name: 'the reply is sent before it is recorded',
    file: 'src/core/attempt/execution.ts',
    find: 'const outcome = await this.#settle(settlement, undefined)\n    switch',
    replace:
      'const outcome = { kind: "settled", expiresAt: new Date(0) } as SettleOutcome\n' +
      '    void this.#settle(settlement, undefined)\n    switch',
    caughtBy: SIMULATION,
  },
  {
    name: 'a lapsed key is run again although its outcome is unknown',
    file: 'src/core/record/decide.ts',
    find: "if (record.onLapse === 'unknown') {\n    const write",
    replace: "if (record.onLapse === 'unknown' && record.attempt > 99) {\n    const write",
    caughtBy: SIMULATION,
  },
  {
    name: 'a failure after an outside effect releases the key',
    file: 'src/core/attempt/failure.ts',
    find: 'return effectBegun || looksLikeLostCall(error)',
    replace: 'return looksLikeLostCall(error)',
    caughtBy: SIMULATION,
  },
  {
    name: 'a result that could not be recorded is reported as done',
    file: 'src/core/attempt/execution.ts',
    find: 'throw new OutcomeNotRecordedError(recordId, outcome.cause)',
    replace: "return { kind: 'ran', recordId, result, expiresAt: new Date(0) }",
    caughtBy: SIMULATION,
  },
  {
    name: 'a sweep releases a key although its outcome is unknown',
    file: 'src/core/record/decide.ts',
    find: "nowMs: number): StoredRecord {\n  if (record.onLapse === 'unknown') {",
    replace: "nowMs: number): StoredRecord {\n  if (record.onLapse === 'resume') {",
    caughtBy: SIMULATION,
  },
  {
    name: 'a refusal after an outside effect releases the key',
    file: 'src/core/attempt/execution.ts',
    find: 'if (!mayRetry && mayHaveActed({ effectBegun, error }))',
    replace: 'if (!mayRetry && mayHaveActed({ effectBegun: false, error }))',
    caughtBy: SIMULATION,
  },
  {
    name: 'a rollback counts as proof although the work acted after it',
    file: 'src/core/attempt/attempt-verdict.ts',
    find: 'rollback !== undefined && rollback.error === error',
    replace: 'rollback !== undefined',
    caughtBy: SIMULATION,
  },
  {
    name: 'a commit without an answer counts as done',
    file: 'src/core/attempt/live-context.ts',
    find: 'else outcome = await this.#probeCommit(error)',
    replace: "else outcome = { kind: 'settled', expiresAt: new Date(0) } as SettleOutcome",
    caughtBy: SIMULATION,
  },
  {
    name: 'a holder that was fenced out reports its own result',
    file: 'src/core/attempt/execution.ts',
    find: "case 'fenced':\n        return this.#resultOrLeaseLost()",
    replace:
      "case 'fenced':\n        return { kind: 'ran', recordId, result, expiresAt: new Date(0) }",
    caughtBy: SIMULATION,
  },
  {
    name: 'a duplicate that waits claims again after close()',
    file: 'src/core/engine/shared-wait.ts',
    find: 'if (isClosing()) this.#dismiss(() => true)\n      else if',
    replace: 'if',
    caughtBy: SIMULATION,
  },
  {
    name: 'close() does not wait for the work',
    file: 'src/core/engine/engine.ts',
    find: 'const working = this.#running + this.#outliving',
    replace: 'const working = 0',
    caughtBy: SIMULATION,
  },
  {
    name: 'the tenant is left out of the identity',
    file: 'src/core/record/identity.ts',
    find: '`${tenant.length}:${tenant}${operation.length}',
    replace: '`${operation.length}',
    caughtBy: SIMULATION,
  },
  {
    name: 'a shared answer is given to another fingerprint',
    file: 'src/core/store/claim-sharing.ts',
    find: "${mode === 'take' ? token : ''} ${fingerprint}`",
    replace: "${mode === 'take' ? token + fingerprint : ''}`",
    caughtBy: SIMULATION,
  },
  {
    name: 'a won claim is given to two callers',
    file: 'src/core/store/claim-sharing.ts',
    find: "return { kind: 'in_progress', recordId, leaseLeftMs: leaseMs, expiresAt }",
    replace: 'return recordId && expiresAt && leaseMs ? outcome : outcome',
    caughtBy: SIMULATION,
  },
  {
    name: 'a late joiner gets the answer of a call that was already in progress',
    file: 'src/core/store/coalescer.ts',
    // The answer would describe a moment before the late joiner's request.
    find: 'const row = subject === undefined ? undefined : this.#rows.get(subject)\n',
    replace:
      'const sent = this.sent?.get(subject)\n' +
      '    const [one, other] = sent ? [sent.first.request, entry.request] : []\n' +
      '    if (sent && this.#questionOf(one) === this.#questionOf(other)) {\n' +
      '      sent.followers.push(entry)\n' +
      '      return sent.lane\n' +
      '    }\n' +
      '    const row = subject === undefined ? undefined : this.#rows.get(subject)\n',
    also: {
      find: 'await this.#send(lane, batch, limit)\n',
      replace:
        'this.sent ??= new Map()\n' +
        '      const subjectOf = this.#options.sharing?.subjectOf ?? Symbol\n' +
        '      const subjects = batch.map((row) => subjectOf(row.first.request))\n' +
        '      batch.forEach((row, n) => this.sent.set(subjects[n], row))\n' +
        '      await this.#send(lane, batch, limit).finally(() => {\n' +
        '        batch.forEach((row, n) => {\n' +
        '          if (this.sent.get(subjects[n]) === row) this.sent.delete(subjects[n])\n' +
        '        })\n' +
        '      })\n',
    },
    caughtBy: SIMULATION,
  },
  {
    name: 'a duplicate that begins to wait gets the answer of a read that is already in progress',
    file: 'src/core/engine/shared-wait.ts',
    find: 'const sharing = new Set(this.#members)',
    replace: 'const sharing = this.#members',
    caughtBy: 'test/core/engine/hot-key.test.ts',
  },
]

it.each(BUGS)(
  'a check detects when $name',
  async (bug) => {
    const copy = plant(bug)
    try {
      const { code, output } = await runCheck(copy, bug)
      expect(code, `no check detected that ${bug.name}:\n${output}`).toBe(1)
      // A copy that fails to start would also exit with 1, which proves nothing.
      expect(output).toMatch(/\d+ failed|^an invariant was violated/m)
    } finally {
      rmSync(copy, { recursive: true, force: true })
    }
  },
  120_000,
)

function plant({ file, caughtBy, also, ...first }: PlantedBug): string {
  const root = join(import.meta.dirname, '..', '..')
  const copy = mkdtempSync(join(tmpdir(), 'oncekey-planted-'))
  const parts =
    caughtBy === SIMULATION
      ? ['src', 'test/simulation', 'package.json']
      : ['src', 'test', 'package.json', 'tsconfig.json', 'vitest.config.ts']
  for (const part of parts) {
    const filter = (from: string) => !from.endsWith('node_modules')
    cpSync(join(root, part), join(copy, part), { recursive: true, filter })
  }
  symlinkSync(join(root, 'node_modules'), join(copy, 'node_modules'))
  const path = join(copy, file)
  for (const { find, replace } of [first, ...(also === undefined ? [] : [also])]) {
    const source = readFileSync(path, 'utf8')
    expect(source.split(find), `the patch fits ${file} exactly once`).toHaveLength(2)
    writeFileSync(
      path,
      source.replace(find, () => replace),
    )
  }
  return copy
}

function runCheck(
  copy: string,
  { caughtBy }: PlantedBug,
): Promise<{ code: number; output: string }> {
  const args =
    caughtBy === SIMULATION
      ? ['test/simulation/look-for-bug.ts', `${HISTORIES_MAX}`]
      : [join('node_modules', 'vitest', 'vitest.mjs'), 'run', '--root', copy, caughtBy]
  const env = { ...process.env, NO_COLOR: '1' }
  const child = spawn(process.execPath, args, { cwd: copy, env })
  let output = ''
  const hear = (chunk: Buffer) => {
    output += chunk.toString()
  }
  child.stdout.on('data', hear)
  child.stderr.on('data', hear)
  return new Promise((resolve, reject) => {
    child.on('error', reject)
    child.on('close', (code) => resolve({ code: code ?? -1, output }))
  })
}
