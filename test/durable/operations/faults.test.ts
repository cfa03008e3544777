/**
 * Provider faults in a whole payment, from the request of the client to the end, with a worker and
 * a reconciler. Each payment ends with one charge and one reply, or is `unknown` and waits for an
 * operator.
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

/** Expects one charge that is booked once, and the same reply for every request. */
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

/** Expects a payment that only an operator can resolve, also after more requests and passes. */
async function expectWaitsForOperator({
  waitsForOperator,
  ask,
  pass,
  provider,
  entries,
}: FaultsFixture) {
  const calls = provider.calls.length
  expect(await waitsForOperator()).toBe(true)
  expect(await ask()).toEqual({ kind: 'unknown' })
  await pass(3 * PROVEN_AFTER_MS)
  expect(await waitsForOperator()).toBe(true)
  expect(provider.calls).toHaveLength(calls)
  expect(entries()).toEqual(['recorded'])
}

/** An operator resolves the effect with the entry of the provider's books. */
async function concludeHonestly({ provider, operator, record, downstreamKey }: FaultsFixture) {
  const key = downstreamKey()
  const charge = provider.find(key)
  const verdict =
    charge === undefined
      ? ({ kind: 'not_executed' } as const)
      : ({ kind: 'done', result: charge } as const)
  expect(await operator.resolve({ downstreamKey: key }, verdict, BY)).toMatchObject({
    kind: 'done',
  })
  const { recordId } = await record()
  expect(await operator.audit({ subject: recordId })).toMatchObject([{ ...BY, act: 'conclude' }])
}

describe.each(['error before effect', 'effect then lost', 'effect then garbage'] as const)(
  '%s',
  (fault: Fault) => {
    it.each(['reconcile', 'resend'] as const)('ends as one payment by %s', async (way) => {
      const fixture = faultsFixture(way)
      fixture.provider.faults.push(fault)
      await fixture.ask()
      await fixture.rest()
      await expectOnePayment(fixture)
    })

    it('ends as one payment by a verdict of an operator', async () => {
      const fixture = faultsFixture('operator')
      fixture.provider.faults.push(fault)
      expect(await fixture.ask()).toEqual({ kind: 'OUTCOME_UNKNOWN' })
      await fixture.rest()
      await expectWaitsForOperator(fixture)
      await concludeHonestly(fixture)
      await fixture.rest()
      await expectOnePayment(fixture)
    })
  },
)

describe('effect then timeout', () => {
  it.each(WAYS)('ends with one charge after a timeout by %s', async (way) => {
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
    if (way === 'operator') {
      await expectWaitsForOperator(silent)
      await concludeHonestly(silent)
      await silent.rest()
    }
    await expectOnePayment(silent)
  })
})

describe('a charge that succeeds after its timeout', () => {
  it('finds a late charge that came before the first try', async () => {
    const fixture = faultsFixture('reconcile')
    const { provider, ask, rest } = fixture
    provider.faults.push('late')
    expect(await ask()).toEqual({ kind: 'OUTCOME_UNKNOWN' })
    provider.arrive()
    await rest()
    await expectOnePayment(fixture)
    expect(provider.calls).toHaveLength(1)
  })

  it('finds a late charge that came after not_found was no proof', async () => {
    const fixture = faultsFixture('reconcile')
    const { provider, ask, rest, pass, record, operator } = fixture
    provider.faults.push('late')
    await ask()
    const { recordId } = await record()
    // An operator makes the record due: the next try would come at the time of proof.
    await operator.processNow({ recordId }, BY)
    await pass(PROVEN_AFTER_MS - 60_000)
    expect(provider.questions.length).toBeGreaterThan(1)
    expect((await record()).state).toBe('unknown')
    provider.arrive()
    await rest()
    await expectOnePayment(fixture)
    expect(provider.calls).toHaveLength(1)
  })

  // notFoundIsFinalAfterMs was too short. The same downstream key prevents a second charge.
  it('charges once if the late charge comes between the proof and the second send', async () => {
    const fixture = faultsFixture('reconcile')
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

  it('charges once if the late charge comes after the second send', async () => {
    const fixture = faultsFixture('reconcile')
    const { provider, ask, rest, pass } = fixture
    provider.faults.push('late')
    await ask()
    await pass(2 * PROVEN_AFTER_MS)
    await rest()
    provider.arrive()
    await expectOnePayment(fixture)
    expect(provider.calls).toHaveLength(2)
  })

  it('charges once if the effect is sent again within resendWithinMs', async () => {
    const fixture = faultsFixture('resend')
    const { provider, ask, rest } = fixture
    provider.faults.push('late', 'late')
    await ask()
    await ask()
    provider.arrive()
    await rest()
    await expectOnePayment(fixture)
  })

  it('ends as one payment if an operator resolves the late charge', async () => {
    const fixture = faultsFixture('operator')
    const { provider, ask, rest } = fixture
    provider.faults.push('late')
    await ask()
    await rest()
    provider.arrive()
    await expectWaitsForOperator(fixture)
    await concludeHonestly(fixture)
    await rest()
    await expectOnePayment(fixture)
  })
})

describe('a provider that repeats a stored 500', () => {
  it.each(WAYS)('leaves a stored 500 to an operator, without a charge, by %s', async (way) => {
    const fixture = faultsFixture(way)
    const { provider, ask, rest, record, operator } = fixture
    provider.faults.push('stored 500')
    await ask()
    await rest()
    expect(provider.ledger).toEqual([])
    await expectWaitsForOperator(fixture)
    expect(provider.calls.length).toBeLessThanOrEqual(20)

    // The operator learns that the charge will never happen, and the client gets that reply.
    const { recordId } = await record()
    const result = new TextEncoder().encode('x')
    await operator.resolve({ recordId }, { kind: 'completed', result }, BY)
    expect((await record()).state).toBe('completed')
    expect(provider.ledger).toEqual([])
  })
})

describe('a provider that has forgotten its keys', () => {
  it('does not send a charge again after the provider has forgotten its key', async () => {
    const fixture = faultsFixture('resend')
    const { provider, clock, ask, rest } = fixture
    provider.faults.push('effect then lost')
    await ask()
    // No process ran for a day.
    await clock.advanceAsync(REPEATABLE_MS)
    provider.forgetKeys()
    await rest()
    await expectWaitsForOperator(fixture)
    expect(provider.ledger).toHaveLength(1)
    await concludeHonestly(fixture)
    await rest()
    await expectOnePayment(fixture)
  })

  it('finds a charge by reconcile after the provider has forgotten its key', async () => {
    const fixture = faultsFixture('reconcile', { resendWithinMs: REPEATABLE_MS })
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

  it('resolves a charge once by a webhook that comes twice', async () => {
    const fixture = faultsFixture('operator')
    fixture.provider.faults.push('effect then lost')
    await fixture.ask()
    expect(await told(fixture)).toMatchObject({ kind: 'done' })
    expect(await told(fixture)).toMatchObject({ kind: 'already' })
    await fixture.rest()
    expect(await told(fixture)).toMatchObject({ kind: 'already' })
    await expectOnePayment(fixture)
  })

  it('completes a payment that was given up by a late webhook', async () => {
    const fixture = faultsFixture('operator')
    fixture.provider.faults.push('effect then lost')
    await fixture.ask()
    await fixture.rest()
    await expectWaitsForOperator(fixture)
    expect(await told(fixture)).toMatchObject({ kind: 'done' })
    await fixture.rest()
    await expectOnePayment(fixture)
  })

  it.each(WAYS)('charges once if the webhook comes before the response, by %s', async (way) => {
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

  it.each(WAYS)('completes a payment by a webhook in place of the response, by %s', async (way) => {
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

  it('completes a payment without a webhook by reconcile', async () => {
    const fixture = faultsFixture('reconcile')
    const { provider, ask, rest } = fixture
    provider.faults.push('late')
    await ask()
    await fixture.pass(60_000)
    provider.arrive()
    await rest()
    await expectOnePayment(fixture)
  })
})
