import { expect, it } from 'vitest'
import type { StoredOperation } from '../../../src/core/store/durable-store.ts'
import { decodeOperation, encodeOperation } from '../../../src/stores/kit/stored-operation.ts'

it('returns every field of an operation and its phases, with their bytes and times', () => {
  const at = new Date('2026-01-02T03:04:05.678Z')
  const times = { firstSentAt: at, sentAt: at }
  const operation: StoredOperation = {
    name: 'pay',
    version: 3,
    input: Buffer.from([0, 255, 10]),
    phases: [
      {
        ...{ name: 'book', number: 1, kind: 'transaction', state: 'done', attempt: 1 },
        ...{ request: undefined, result: Buffer.from('é'), ...times, doneAt: at },
        ...{ downstreamKey: undefined, providerId: undefined },
      },
      {
        ...{ name: 'charge', number: 2, kind: 'external', state: 'intended', attempt: 2 },
        ...{ request: Buffer.alloc(0), result: undefined, ...times, doneAt: undefined },
        ...{ downstreamKey: 'ok_1', providerId: 'ch_1' },
      },
    ],
  }
  expect(decodeOperation(encodeOperation(operation))).toStrictEqual(operation)
})
