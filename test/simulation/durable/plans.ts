/** How plans are drawn at random. */
import fc, { type Arbitrary } from 'fast-check'
import { KEYS, type Attempt, type ClientPlan } from './client.ts'
import type { FairStep, Hang, HostilePlan } from './hostile.ts'
import { MAIL_FAULTS, type MailFault } from './mailer.ts'
import type { Mood } from './payment.ts'
import { FAULTS, type QueryFate, type Fault } from './provider.ts'
import type { Plan, Step } from './simulate.ts'
import type { Fate, Troubles } from './world.ts'

const NODES = 2

/** Draws `first` most of the time, and one of the others otherwise. */
function mostly<Value>(
  first: Value,
  others: readonly Value[],
  weights: readonly [first: number, others: number],
): Arbitrary<Value> {
  return fc.oneof(
    { weight: weights[0], arbitrary: fc.constant(first) },
    { weight: weights[1], arbitrary: fc.constantFrom(...others) },
  )
}

const node = fc.nat(NODES - 1)

const attempts: Arbitrary<Attempt> = fc.record({
  node,
  accepts: fc.boolean(),
  waits: mostly(false, [true], [2, 1]),
})

const clients: Arbitrary<ClientPlan> = fc.record({
  key: fc.nat(KEYS - 1),
  attempts: fc.array(attempts, { minLength: 1, maxLength: 3, size: 'max' }),
})

const stepOf = <Kind extends Step['kind'], Rest extends object>(
  kind: Kind,
  rest: { [Name in keyof Rest]: Arbitrary<Rest[Name]> },
) => fc.record({ kind: fc.constant(kind), ...rest }) as Arbitrary<{ kind: Kind } & Rest>

const fairStepOf = <Kind extends FairStep['kind'], Rest extends object>(
  kind: Kind,
  rest: { [Name in keyof Rest]: Arbitrary<Rest[Name]> },
) => fc.record({ kind: fc.constant(kind), ...rest }) as Arbitrary<{ kind: Kind } & Rest>

const steps: Arbitrary<Step> = fc.oneof(
  { weight: 9, arbitrary: stepOf('run', { turns: fc.nat(30) }) },
  {
    weight: 6,
    arbitrary: stepOf('advance', { ms: fc.constantFrom(50, 210, 340, 700, 1_100, 2_500, 7_000) }),
  },
  { weight: 1, arbitrary: stepOf('jump', { ms: fc.constantFrom(1_500, 600, -600, -1_500) }) },
  { weight: 1, arbitrary: stepOf('crash', { node }) },
  { weight: 3, arbitrary: stepOf('stall', { node }) },
  { weight: 3, arbitrary: stepOf('resume', { node }) },
  { weight: 1, arbitrary: stepOf('close', { node }) },
  { weight: 2, arbitrary: stepOf('webhook', { node, charge: fc.nat(7) }) },
)

const list = <Value>(values: Arbitrary<Value>): Arbitrary<Value[]> =>
  fc.array(values, { minLength: 1, maxLength: 12, size: 'max' })

const troubles: Arbitrary<Troubles> = fc.record({
  fates: list(mostly<Fate>('ok', ['fail_before', 'fail_after', 'lost', 'never', 'late'], [14, 4])),
  // Late requests test the wait for proof, so they are drawn twice as often as the others.
  faults: list(mostly<Fault>('ok', [...FAULTS, 'late', 'silent_late'], [3, 5])),
  asked: list(mostly<QueryFate>('ok', ['pending', 'fails', 'silent'], [3, 2])),
  mail: list(mostly<MailFault>('ok', MAIL_FAULTS, [3, 3])),
  moods: list(
    mostly<Mood>('ok', ['fails_recording', 'fails_after_charge', 'fails_booking'], [5, 2]),
  ),
})

const fairSteps: Arbitrary<FairStep> = fc.oneof(
  { weight: 5, arbitrary: fairStepOf('wait', { ms: fc.constantFrom(100, 400, 1_200, 2_500) }) },
  {
    weight: 6,
    arbitrary: fairStepOf('arrive', { slot: fc.nat(11), accepts: mostly(true, [false], [5, 1]) }),
  },
  { weight: 2, arbitrary: fairStepOf('receipt', { customer: fc.nat(3) }) },
  { weight: 1, arbitrary: fairStepOf('restart', { node }) },
  { weight: 1, arbitrary: fairStepOf('stall', { node }) },
  { weight: 2, arbitrary: fairStepOf('resume', { node }) },
)

const hostilePlans: Arbitrary<HostilePlan> = fc.record({
  hasReserve: mostly(true, [false], [2, 1]),
  shared: fc.constantFrom(undefined, 'askable', 'both'),
  floodsReceipts: fc.boolean(),
  hangsInRun: fc.boolean(),
  hangs: list(fc.constantFrom<Hang>('obeys', 'late', 'never')),
  faults: list(
    mostly<Fault>('ok', ['declined', 'slow', 'error_before', 'effect_lost', 'garbage'], [2, 3]),
  ),
  asked: list(mostly<QueryFate>('ok', ['pending', 'fails'], [2, 2])),
  steps: fc.array(fairSteps, { minLength: 4, maxLength: 14, size: 'max' }),
})

export const plans: Arbitrary<Plan> = fc.record({
  clients: fc.array(clients, { minLength: 2, maxLength: 5, size: 'max' }),
  steps: fc.array(steps, { maxLength: 24, size: 'max' }),
  troubles,
  backlog: fc.array(fc.nat(3), { maxLength: 3, size: 'max' }),
  // A history with a hostile tenant takes twenty times as long as the others.
  hostile: fc.oneof(
    { weight: 15, arbitrary: fc.constant(undefined) },
    { weight: 1, arbitrary: hostilePlans },
  ),
  salt: fc.integer(),
})

/** Plans that all contain the hostile tenant. */
export const plansWithHostile: Arbitrary<Plan> = fc
  .tuple(plans, hostilePlans)
  .map(([plan, hostile]) => ({ ...plan, hostile }))
