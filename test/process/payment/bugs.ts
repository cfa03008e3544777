/** Bugs that are planted into a process, to test that the checks detect them. */
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import type { DurableStore } from '../../../src/core/store/durable-store.ts'
import type { Write } from './operation.ts'
import type { ProgramParts } from './programs.ts'

type Parts = ProgramParts & { readonly store: { readonly durable: DurableStore } }

const BUGS = {
  /** The charge is sent before its intent is recorded. */
  'the intent is not committed': (parts: Parts): ProgramParts => {
    const { phases } = parts.store.durable
    const record = phases.record.bind(phases)
    phases.record = async (lease, step) => {
      if (step.phase?.kind === 'intent') return { kind: 'advanced', expiresAt: new Date() }
      return record(lease, step)
    }
    return parts
  },

  'the rows are committed after the recovery point': (parts: Parts): ProgramParts => {
    const { phases } = parts.store.durable
    const advance = phases.advance.bind(phases)
    const app = new DatabaseSync(join(parts.folder, 'test.db'), { timeout: 1_000 })
    const late: string[] = []
    phases.advance = async (lease, work) => {
      const outcome = await advance(lease, work)
      await Promise.resolve()
      for (const statement of late.splice(0)) app.exec(statement)
      return outcome
    }
    const write: Write = (_, statements) => {
      late.push(...statements)
      return undefined
    }
    return { ...parts, write }
  },

  'a message is done before it is delivered': (parts: Parts): ProgramParts => {
    const { outbox } = parts.store.durable
    const claim = outbox.claim.bind(outbox)
    const settle = outbox.settle.bind(outbox)
    outbox.claim = async (request) => {
      const messages = await claim(request)
      const done = messages.map(({ id, token }) => ({ id, token, providerId: undefined }))
      await settle(done.map((one) => ({ ...one, kind: 'done' }) as const))
      return messages
    }
    outbox.settle = async (settlements) => settlements.map(() => true)
    return parts
  },
} as const

export type Bug = keyof typeof BUGS

export function plant(bug: Bug | undefined, parts: Parts): ProgramParts {
  return bug === undefined ? parts : BUGS[bug](parts)
}
