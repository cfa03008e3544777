/**
 * What a provider can do to a payment, from the request of the client to the end: with a worker and
 * a reconciler beside it, each ends with one charge and one reply, or with the truth on record and
 * an operator who is told.
 */
import { describe, expect, it } from 'vitest'
import {
  PROVEN_AFTER_MS,
  REPEATABLE_MS,
  TIMEOUT_MS,
  WAYS,
  faultsFixture,
  type FaultsFixture,
} from './faults-fixture.ts'
import type { Charge, Fault } from './provider.ts'

const BY = { who: 'ada', why: 'looked into the books of the provider' }

/** One charge, booked once, and one reply for everybody who asks. */
async function expectOnePayment({ provider, ask, entries, record }: FaultsFixture) {
  expect(provider.ledger).toHaveLength(1)
  const [charge] = provider.ledger
  expect(charge).toMatchObject({ amount: 5, key: provider.calls[0] })
  expect(new Set(provider.calls).size).toBe(1)
  expect(entries()).toEqual(['recorded', charge!.status])
  expect((await record()).state).toBe('completed')
  const reply = await ask()
  expect(reply).toMatchObject({ kind: 'replayed', status: 201, body: { chargeId: charge!.id } })
  expect(await ask()).toEqual(reply)
}

/** Nobody but a person can know: it is on the desk, and stays there, whoever asks. */
async function expectOnDesk({ isOnDesk, ask, pass, provider, entries }: FaultsFixture) {
  const calls = provider.calls.length
  expect(await isOnDesk()).toBe(true)
  expect(await ask()).toEqual({ kind: 'unknown' })
  await pass(3 * PROVEN_AFTER_MS)
  expect(await isOnDesk()).toBe(true)
  expect(provider.calls).toHaveLength(calls)
  expect(entries()).toEqual(['recorded'])
}

/** An operator says what is in the provider's books. */
async function concludeHonestly({ provider, operator, record, downstreamKey }: FaultsFixture) {
  const key = downstreamKey()
  const charge = provider.find(key)
  const verdict =
    charge === undefined
      ? ({ kind: 'not_executed' } as const)
      : ({ kind: 'done', result: charge } as const)
  expect(await operator.conclude({ downstreamKey: key }, verdict, BY)).toMatchObject({
    kind: 'done',
  })
  const { recordId } = await record()
  expect(await operator.audit({ subject: recordId })).toMatchObject([{ ...BY, act: 'conclude' }])
}

describe.each(['error before effect', 'effect then lost', 'effect then garbage'] as const)(
  '%s',
  (fault: Fault) => {
    it.each(['asked', 'repeated'] as const)('is one payment where it is %s', async (way) => {
      const fixture = faultsFixture(way)
      fixture.provider.faults.push(fault)
      await fixture.ask()
      await fixture.rest()
      await expectOnePayment(fixture)
    })

    it('is for an operator where nobody can be asked, who brings it to one payment', async () => {
      const fixture = faultsFixture('blind')
      fixture.provider.faults.push(fault)
      expect(await fixture.ask()).toEqual({ kind: 'OUTCOME_UNKNOWN' })
      await fixture.rest()
      await expectOnDesk(fixture)
      await concludeHonestly(fixture)
      await fixture.rest()
      await expectOnePayment(fixture)
    })
  },
)

describe('effect then timeout', () => {
  it.each(WAYS)('ends with one charge where it is %s', async (way) => {
    const silent: FaultsFixture = faultsFixture(way, {
      send: async ({ request, downstreamKey }) => {
        const charge = (await silent.provider.charge(request, downstreamKey)) as Charge
        if (silent.provider.calls.length === 1) await new Promise(() => undefined)
        return charge
      },
    })
    const asked = silent.ask()
    await silent.clock.advanceAsync(TIMEOUT_MS)
    await asked
    await silent.rest()
    if (way === 'blind') {
      await expectOnDesk(silent)
      await concludeHonestly(silent)
      await silent.rest()
    }
    await expectOnePayment(silent)
  })
})

describe('success long after it was given up', () => {
  it('is found where it came before the first look', async () => {
    const fixture = faultsFixture('asked')
    const { provider, ask, rest } = fixture
    provider.faults.push('late')
    expect(await ask()).toEqual({ kind: 'OUTCOME_UNKNOWN' })
    provider.arrive()
    await rest()
    await expectOnePayment(fixture)
    expect(provider.calls).toHaveLength(1)
  })

  it('is found where it came after "not found", while that is no proof', async () => {
    const fixture = faultsFixture('asked')
    const { provider, ask, rest, pass, record, operator } = fixture
    provider.faults.push('late')
    await ask()
    const { recordId } = await record()
    // Somebody is impatient: it would be looked into only when the answer is a proof.
    await operator.requeue({ recordId }, BY)
    await pass(PROVEN_AFTER_MS - 60_000)
    expect(provider.questions.length).toBeGreaterThan(1)
    expect((await record()).state).toBe('unknown')
    provider.arrive()
    await rest()
    await expectOnePayment(fixture)
    expect(provider.calls).toHaveLength(1)
  })

  // The proof was none: what saves it is that the key stays the same.
  it('is recognised where it comes after the proof, and before it is sent again', async () => {
    const fixture = faultsFixture('asked')
    const { provider, ask, rest, clock, reconciler, record } = fixture
    provider.faults.push('late')
    await ask()
    await clock.advanceAsync(PROVEN_AFTER_MS)
    expect(await reconciler.runOnce()).toMatchObject({ resolved: 1 })
    expect((await record()).state).toBe('failed_retryable')
    provider.arrive()
    await rest()
    await expectOnePayment(fixture)
    expect(provider.calls).toHaveLength(2)
  })

  it('is recognised where it comes after it was sent again', async () => {
    const fixture = faultsFixture('asked')
    const { provider, ask, rest, pass } = fixture
    provider.faults.push('late')
    await ask()
    await pass(2 * PROVEN_AFTER_MS)
    await rest()
    provider.arrive()
    await expectOnePayment(fixture)
    expect(provider.calls).toHaveLength(2)
  })

  it('is recognised where it is simply sent again', async () => {
    const fixture = faultsFixture('repeated')
    const { provider, ask, rest } = fixture
    provider.faults.push('late', 'late')
    await ask()
    await ask()
    provider.arrive()
    await rest()
    await expectOnePayment(fixture)
  })

  it('is told by an operator where nobody can be asked', async () => {
    const fixture = faultsFixture('blind')
    const { provider, ask, rest } = fixture
    provider.faults.push('late')
    await ask()
    await rest()
    provider.arrive()
    await expectOnDesk(fixture)
    await concludeHonestly(fixture)
    await rest()
    await expectOnePayment(fixture)
  })
})

describe('a stored 500, given again under its key', () => {
  it.each(WAYS)('ends on the desk and without a charge where it is %s', async (way) => {
    const fixture = faultsFixture(way)
    const { provider, ask, rest, record, operator } = fixture
    provider.faults.push('stored 500')
    await ask()
    await rest()
    expect(provider.ledger).toEqual([])
    await expectOnDesk(fixture)
    expect(provider.calls.length).toBeLessThanOrEqual(20)

    // The provider says on the phone that nothing will come of it: the client is told so.
    const { recordId } = await record()
    const result = new TextEncoder().encode('x')
    await operator.resolve({ recordId }, { kind: 'completed', result }, BY)
    expect((await record()).state).toBe('completed')
    expect(provider.ledger).toEqual([])
  })
})

describe('a provider that has forgotten its keys', () => {
  it('is not sent the charge again, which would be a second one', async () => {
    const fixture = faultsFixture('repeated')
    const { provider, clock, ask, rest } = fixture
    provider.faults.push('effect then lost')
    await ask()
    // Nobody was there for a day.
    await clock.advanceAsync(REPEATABLE_MS)
    provider.forgetKeys()
    await rest()
    await expectOnDesk(fixture)
    expect(provider.ledger).toHaveLength(1)
    await concludeHonestly(fixture)
    await rest()
    await expectOnePayment(fixture)
  })

  it('is asked for it where its books can be read', async () => {
    const fixture = faultsFixture('asked', { repeatable: { withinMs: REPEATABLE_MS } })
    const { provider, clock, ask, rest } = fixture
    provider.faults.push('effect then lost')
    provider.query = async () => Promise.reject(new Error('the query API is down'))
    await ask()
    await clock.advanceAsync(REPEATABLE_MS)
    provider.forgetKeys()
    await fixture.pass(60_000)
    provider.query = async (key) => provider.find(key)
    await rest()
    await expectOnePayment(fixture)
    expect(provider.calls).toHaveLength(1)
  })
})

describe('webhooks', () => {
  const told = (fixture: FaultsFixture) => {
    const downstreamKey = fixture.downstreamKey()
    const result = fixture.provider.find(downstreamKey)
    return fixture.reconciler.resolve({ downstreamKey }, { kind: 'done', result })
  }

  it('that come twice count once', async () => {
    const fixture = faultsFixture('blind')
    fixture.provider.faults.push('effect then lost')
    await fixture.ask()
    expect(await told(fixture)).toMatchObject({ kind: 'done' })
    expect(await told(fixture)).toMatchObject({ kind: 'already' })
    await fixture.rest()
    expect(await told(fixture)).toMatchObject({ kind: 'already' })
    await expectOnePayment(fixture)
  })

  it('that come long after everybody has given up bring it to its end', async () => {
    const fixture = faultsFixture('blind')
    fixture.provider.faults.push('effect then lost')
    await fixture.ask()
    await fixture.rest()
    await expectOnDesk(fixture)
    expect(await told(fixture)).toMatchObject({ kind: 'done' })
    await fixture.rest()
    await expectOnePayment(fixture)
  })

  it.each(WAYS)('that come before the response change nothing where it is %s', async (way) => {
    const fixture: FaultsFixture = faultsFixture(way, {
      send: async ({ request, downstreamKey }) => {
        const charge = (await fixture.provider.charge(request, downstreamKey)) as Charge
        expect(await told(fixture)).toMatchObject({ kind: 'done' })
        return charge
      },
    })
    expect(await fixture.ask()).toMatchObject({ kind: 'ran', status: 201 })
    await expectOnePayment(fixture)
    expect(fixture.provider.calls).toHaveLength(1)
  })

  it.each(WAYS)('that come instead of the response stand for it where it is %s', async (way) => {
    const fixture: FaultsFixture = faultsFixture(way, {
      send: async ({ request, downstreamKey }) => {
        try {
          return (await fixture.provider.charge(request, downstreamKey)) as Charge
        } finally {
          await told(fixture)
        }
      },
    })
    fixture.provider.faults.push('effect then lost')
    await fixture.ask()
    await fixture.rest()
    await expectOnePayment(fixture)
    expect(fixture.provider.calls).toHaveLength(1)
  })

  it('that never come are not needed where the provider can be asked', async () => {
    const fixture = faultsFixture('asked')
    const { provider, ask, rest } = fixture
    provider.faults.push('late')
    await ask()
    await fixture.pass(60_000)
    provider.arrive()
    await rest()
    await expectOnePayment(fixture)
  })
})
