/** How plans are drawn at random. */
import fc, { type Arbitrary } from 'fast-check'
import type { Attempt, Call, ClientPlan } from './client.ts'
import type { Plan, Step } from './simulate.ts'
import { BEHAVIOURS, KEYS, OWN_KEYS, type Behaviour } from './work.ts'
import type { Fate } from './world.ts'

const behaviours: Arbitrary<Behaviour> = fc.oneof(
  { weight: 5, arbitrary: fc.constant<Behaviour>('ok') },
  { weight: 6, arbitrary: fc.constantFrom(...BEHAVIOURS) },
)

/** True in a small share of the draws. */
const seldom: Arbitrary<boolean> = fc.oneof(
  { weight: 6, arbitrary: fc.constant(false) },
  fc.constant(true),
)

const calls: Arbitrary<Call> = fc.record({
  behaviour: behaviours,
  altered: seldom,
  waits: fc.oneof({ weight: 2, arbitrary: fc.constant(false) }, fc.constant(true)),
  finds: seldom,
})

/** Mostly one request; sometimes several at once, which share a row of a store call. */
const attempts: Arbitrary<Attempt> = fc.record({
  node: fc.nat(1),
  calls: fc.oneof(
    { weight: 3, arbitrary: fc.array(calls, { minLength: 1, maxLength: 1 }) },
    fc.array(calls, { minLength: 2, maxLength: 4, size: 'max' }),
  ),
})

/** Mostly keys of one tenant, because faults need several clients on one key. */
const key = fc.oneof({ weight: 3, arbitrary: fc.nat(OWN_KEYS - 1) }, fc.nat(KEYS - 1))

const clients: Arbitrary<ClientPlan> = fc.record({
  key,
  attempts: fc.array(attempts, { minLength: 1, maxLength: 4, size: 'max' }),
})

const fates: Arbitrary<Fate> = fc.oneof(
  { weight: 12, arbitrary: fc.constant<Fate>('ok') },
  {
    weight: 5,
    arbitrary: fc.constantFrom<Fate>('fail_before', 'fail_after', 'lost', 'never', 'late'),
  },
)

const node = fc.nat(1)
const stepOf = <Kind extends Step['kind'], Rest extends object>(
  kind: Kind,
  rest: { [Name in keyof Rest]: Arbitrary<Rest[Name]> },
) => fc.record({ kind: fc.constant(kind), ...rest }) as Arbitrary<{ kind: Kind } & Rest>

const steps: Arbitrary<Step> = fc.oneof(
  { weight: 8, arbitrary: stepOf('run', { turns: fc.nat(12) }) },
  {
    weight: 4,
    arbitrary: stepOf('advance', { ms: fc.constantFrom(50, 210, 340, 700, 1_100, 2_500) }),
  },
  {
    weight: 1,
    arbitrary: stepOf('jump', { ms: fc.constantFrom(1_500, 600, -600, -3_000, -3_600_000) }),
  },
  { weight: 1, arbitrary: stepOf('crash', { node }) },
  { weight: 1, arbitrary: stepOf('stall', { node }) },
  { weight: 1, arbitrary: stepOf('resume', { node }) },
  { weight: 1, arbitrary: stepOf('close', { node }) },
  { weight: 1, arbitrary: stepOf('resolve', {}) },
  { weight: 1, arbitrary: stepOf('expire', { reaps: fc.boolean() }) },
)

export const plans: Arbitrary<Plan> = fc.record({
  clients: fc.array(clients, { minLength: 1, maxLength: 4, size: 'max' }),
  steps: fc.array(steps, { maxLength: 30, size: 'max' }),
  fates: fc.array(fates, { minLength: 1, maxLength: 16, size: 'max' }),
})
