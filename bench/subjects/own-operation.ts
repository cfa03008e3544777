/** A durable operation of this package with one phase, beside a peer's workflow of one step. */
import { createEngine } from '../../src/core/engine/engine.ts'
import type { RunOutcome } from '../../src/core/attempt/run-outcome.ts'
import { defineOperation, operationPolicy, type EffectCall } from '../../src/durable/index.ts'
import { decodeFrame } from '../../src/http/reply/reply-codec.ts'
import type { Places } from '../run/contract.ts'
import type { Counter, Subject } from '../run/subject.ts'
import { FINGERPRINT, REPLY, REQUEST } from '../run/work.ts'
import { paymentRows } from './payment-rows.ts'
import { openStore } from './stores.ts'

export interface OperationSubjectOptions {
  /**
   * `finish`: its only phase writes a row, and commits with the reply. `external`: an outside
   * effect, whose intent is recorded before it is sent and whose result before it goes on.
   */
  readonly phase: 'finish' | 'external'
  readonly places: Places
}

type Input = typeof REQUEST
type RecordedOutcome = Extract<RunOutcome, { kind: 'ran' | 'replayed' }>

export async function openOperation(
  { phase, places }: OperationSubjectOptions,
  counter: Counter,
): Promise<Subject> {
  const opened = await openStore('postgres', places)
  const write = await paymentRows('postgres', opened)
  const engine = createEngine({ store: opened.store })
  const answer = () => {
    counter.runs++
    return REPLY
  }
  const finish = defineOperation<Input>({
    name: 'finish',
    run: (op) =>
      op.finish('book', async (tx) => {
        await write(tx, op.deterministicId('payment'))
        return { status: 201, body: answer() }
      }),
  })
  const external = defineOperation({
    name: 'external',
    effects: {
      charge: {
        send: async ({ signal }: EffectCall<Input>) => {
          signal.throwIfAborted()
          return answer()
        },
      },
    },
    run: async (op, input: Input) => ({ status: 201, body: await op.external('charge', input) }),
  })
  const chosen = phase === 'finish' ? finish : external
  const policy = operationPolicy(engine)
  const scope = { tenant: 'bench', operation: chosen.name }
  return {
    async run(key) {
      const request = { scope, key, fingerprint: FINGERPRINT, policy }
      const outcome = await engine.run(request, chosen.work(REQUEST))
      if (outcome.kind === 'ran' || outcome.kind === 'replayed') return outcome
      throw new Error(`expected a reply, got ${outcome.kind}`)
    },
    textOf(outcome) {
      const { identity, recordId, result } = outcome as RecordedOutcome
      const decoded = decodeFrame(result, { identity, recordId, ...scope })
      if (decoded.kind !== 'reply') throw new Error(`expected a reply, got ${decoded.kind}`)
      return Buffer.from(decoded.reply.body).toString()
    },
    async close() {
      await engine.close({ graceMs: 1_000 })
      await opened.close()
    },
  }
}
