/** Every fault that was observed in another package has a case that detects it. */
import { expect, it } from 'vitest'
import { adapterCases, storeCases } from '../../src/testing/index.ts'

interface DetectingCases {
  readonly cases: readonly string[]
  /** Cases for the part of the fault that only a store can cause. */
  readonly stores?: readonly string[]
}

const FAULTS: Readonly<Record<string, DetectingCases>> = {
  'replays one tenant’s reply to another': {
    cases: [
      'keeps the keys of tenants apart: no replay, no refusal, no mismatch',
      'lets a tenant use a key that another tenant has in use',
      'runs and records nothing when the tenant is empty',
    ],
  },
  'treats a quoted and a bare key as two': {
    cases: ['treats a quoted and a bare key as the same key'],
  },
  'calls the handler again when the recorded reply is empty': {
    cases: [
      'replays a 200 with an empty body, and does not run it again',
      'replays a 204 with an empty body, and does not run it again',
      'replays an empty stream',
    ],
  },
  'leaves the key stuck, or stores nothing, when the reply was streamed': {
    cases: [
      'replays a reply that was sent in chunks',
      'never replays part of a failed stream as a whole reply',
      'replays status and headers of a stream above replyBytesMax, and runs it once',
    ],
  },
  'corrupts binary replies, even the first': {
    cases: [
      'replays binary bodies byte for byte',
      'replays a JSON reply that is not valid UTF-8 byte for byte',
    ],
  },
  'releases the key of a disconnected client while its handler runs': {
    cases: ['keeps the key of a disconnected client while its handler still runs'],
  },
  'leaves the key of a disconnected client stuck, or stores a false reply': {
    cases: [
      'finishes the work of a client that resets its connection, and replays it to the retry',
      'finishes the work of a client that closes its connection, and replays it to the retry',
      'finishes an empty reply for a client that resets its connection',
      'finishes the stream for a client that resets its connection in the middle',
    ],
  },
  'overwrites the record with a mismatched request': {
    cases: ['refuses another body under a used key, and still replays the original'],
  },
  'hangs, or runs unprotected, when the store fails at the claim': {
    cases: [
      'runs nothing while the store fails at the claim',
      'answers when the store does not respond, and runs nothing',
    ],
  },
  'ends the process when the store fails at the completion': {
    cases: [
      'confirms no work whose reply is not recorded, and replays it once it is recorded',
      'sends the reply when the store recovers in time',
    ],
  },
  'lets every concurrent caller run after expiry': {
    cases: ['runs one of ten concurrent requests after the record has expired'],
  },
  'lets both attempts run and report success after a lease was overrun': {
    cases: [
      'does not run a request again after its lease lapsed: the outcome is unknown',
      'reports no success from a holder whose key was taken over',
    ],
  },
  'replays the wrong reply to another route or query': {
    cases: [
      'keeps the keys of two routes apart',
      'refuses another query under a used key, and still replays the original',
      'distinguishes requests to one route with other parameters by their path',
    ],
  },
  'refuses the same body under another key': {
    cases: ['runs the same request under two keys twice'],
  },
  'reports a key in use before it compares the fingerprint': {
    cases: ['reports a mismatch, not a conflict, for another request under a key in use'],
  },
  'replays cookies to another client': {
    cases: [
      'sets cookies with the first reply and with no replay',
      'does not start with a route that would replay cookies',
    ],
  },
  'overflows the database column of a composed key': {
    cases: ['keeps the longest key of the longest tenant apart from similar keys'],
  },
  'loses its lock because an option is passed wrongly': {
    cases: ['runs one of ten concurrent requests, and answers 409 to the others'],
    stores: ['gives a free key to exactly one of many concurrent claims'],
  },
  'does nothing when it is mounted or configured wrongly': {
    cases: [
      'does not start with an option that does not exist',
      'does not start with no tenant',
      'does not start with an invalid option of a route',
    ],
  },
}

it.each(Object.entries(FAULTS))('detects an adapter that %s', (_fault, { cases, stores = [] }) => {
  expect(adapterCases.map(({ name }) => name)).toEqual(expect.arrayContaining([...cases]))
  expect(storeCases.map(({ name }) => name)).toEqual(expect.arrayContaining([...stores]))
})

it('gives every adapter case a different name', () => {
  const names = adapterCases.map(({ name }) => name)
  expect(names.filter((name, index) => names.indexOf(name) !== index)).toEqual([])
})
