/** Every fault that was seen in another package has a case that would catch it in ours. */
import { expect, it } from 'vitest'
import { adapterCases, storeCases } from '../../src/testing/index.ts'

interface Answer {
  readonly cases: readonly string[]
  /** For what no adapter can get wrong: the store is to blame. */
  readonly stores?: readonly string[]
}

const FAULTS: Readonly<Record<string, Answer>> = {
  'replays one tenant’s reply to another': {
    cases: [
      'keeps the keys of tenants apart: no replay, no refusal, no mismatch',
      'lets a tenant use a key that another tenant has in use',
      'runs and records nothing where the tenant is empty',
    ],
  },
  'treats a quoted and a bare key as two': {
    cases: ['takes a quoted and a bare key for the same key'],
  },
  'calls the handler again where the recorded reply is empty': {
    cases: [
      'replays 200 with an empty body, and does not run it again',
      'replays 204 with an empty body, and does not run it again',
      'replays a stream that had nothing to say',
    ],
  },
  'leaves the key stuck, or stores nothing, where the reply was streamed': {
    cases: [
      'replays a reply that was sent in pieces',
      'never replays half of a stream that failed as if it were whole',
      'keeps status and headers of a stream above the cap, and never runs it again',
    ],
  },
  'corrupts binary replies, even the first': {
    cases: [
      'replays binary bodies byte for byte',
      'replays bytes that are no valid UTF-8 although they claim to be JSON',
    ],
  },
  'releases the key of a client that went away while its handler runs': {
    cases: ['keeps the key of a client that went away while its handler still runs'],
  },
  'leaves the key of a client that went away stuck, or stores a false reply': {
    cases: [
      'finishes the work of a client that is cut off, and replays it to the retry',
      'finishes the work of a client that hangs up, and replays it to the retry',
      'finishes the empty reply for a client that is cut off',
      'finishes the stream for a client that was cut off in the middle of it',
    ],
  },
  'overwrites the record by a mismatch': {
    cases: ['refuses another body under a used key, and still replays the original'],
  },
  'hangs, or runs unprotected, when the store fails at the claim': {
    cases: [
      'runs nothing while the store cannot say whether it may',
      'answers when the store does not, and runs nothing',
    ],
  },
  'ends the process when the store fails at the completion': {
    cases: [
      'acknowledges no work whose reply could not be recorded, and replays it once it is',
      'sends the reply once the store recovers in time',
    ],
  },
  'lets every concurrent caller run after expiry': {
    cases: ['runs one of ten requests that come at once after the record has expired'],
  },
  'lets both attempts run and report success after a lease was overrun': {
    cases: [
      'runs nothing again whose holder fell silent: its outcome is unknown',
      'lets no holder report success whose lease another has taken over',
    ],
  },
  'replays the wrong reply to another route or query': {
    cases: [
      'keeps the keys of two routes apart',
      'refuses another query under a used key, and still replays the original',
      'tells requests to one route with other parameters apart by their path',
    ],
  },
  'refuses the same body under another key': {
    cases: ['runs the same request under two keys twice'],
  },
  'looks whether a key is in use before it looks what for': {
    cases: ['refuses another request under a key in use for what it is, not for now'],
  },
  'replays cookies to somebody else': {
    cases: [
      'sets cookies with the first reply and with no replay',
      'does not start with a route that would replay cookies',
    ],
  },
  'overflows the column of a composed key': {
    cases: ['keeps the longest key of the longest tenant apart from its neighbours'],
  },
  'drops the lock by an option passed the wrong way': {
    cases: ['runs one of ten requests that come at once, and refuses the others for now'],
    stores: ['gives a free key to exactly one of many racing claims'],
  },
  'does nothing where it is mounted or configured wrongly': {
    cases: [
      'does not start with an option that does not exist',
      'does not start with no tenant',
      'does not start with a wrong option of a route',
    ],
  },
}

it.each(Object.entries(FAULTS))('a package that %s is caught', (_fault, { cases, stores = [] }) => {
  expect(adapterCases.map(({ name }) => name)).toEqual(expect.arrayContaining([...cases]))
  expect(storeCases.map(({ name }) => name)).toEqual(expect.arrayContaining([...stores]))
})

it('has no two adapter cases of one name', () => {
  const names = adapterCases.map(({ name }) => name)
  expect(names.filter((name, index) => names.indexOf(name) !== index)).toEqual([])
})
