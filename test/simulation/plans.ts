/** How plans are drawn. */
import fc, { type Arbitrary } from 'fast-check'
import type { Attempt, Behaviour, ClientPlan } from './client.ts'
import type { Plan, Step } from './simulate.ts'
import type { Fate } from './world.ts'

const behaviours: Arbitrary<Behaviour> = fc.oneof(
  { weight: 5, arbitrary: fc.constant<Behaviour>('ok') },
  {
    weight: 5,
    arbitrary: fc.constantFrom<Behaviour>(
      'fails_clean',
      'not_executed',
      'effect_then_fails',
      'lost_call',
      'slow',
      'overruns',
    ),
  },
)

const attempts: Arbitrary<Attempt> = fc.record({
  node: fc.nat(1),
  behaviour: behaviours,
  altered: fc.oneof({ weight: 5, arbitrary: fc.constant(false) }, fc.constant(true)),
})

const clients: Arbitrary<ClientPlan> = fc.record({
  key: fc.nat(1),
  attempts: fc.array(attempts, { minLength: 1, maxLength: 3 }),
})

const fates: Arbitrary<Fate> = fc.oneof(
  { weight: 12, arbitrary: fc.constant<Fate>('ok') },
  {
    weight: 5,
    arbitrary: fc.constantFrom<Fate>('fail_before', 'fail_after', 'lost', 'never', 'late'),
  },
)

const node = fc.nat(1)
const steps: Arbitrary<Step> = fc.oneof(
  { weight: 8, arbitrary: fc.record({ kind: fc.constant('run' as const), turns: fc.nat(8) }) },
  {
    weight: 4,
    arbitrary: fc.record({
      kind: fc.constant('advance' as const),
      ms: fc.constantFrom(50, 210, 340, 700, 1_100, 2_500),
    }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('crash' as const), node }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('stall' as const), node }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('resume' as const), node }) },
)

export const plans: Arbitrary<Plan> = fc.record({
  clients: fc.array(clients, { minLength: 1, maxLength: 4 }),
  steps: fc.array(steps, { maxLength: 14 }),
  fates: fc.array(fates, { minLength: 1, maxLength: 12 }),
})
