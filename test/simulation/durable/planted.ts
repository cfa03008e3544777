/** Bugs that the simulation must detect, planted between the nodes and their environment. */
import type { OutboxStore, PhaseStore, StepOutcome } from '../../../src/core/store/durable-store.ts'
import { Places, type Lane } from '../../../src/durable/places/places.ts'
import { SimulatedTurns } from '../../durable/simulated/turns.ts'
import { HOG, HOOK } from './hostile.ts'
import type { Sabotage, World } from './world.ts'

export interface PlantedBug {
  readonly name: string
  readonly sabotage: Sabotage
  /** The violation that the simulation must report. */
  readonly noticed: RegExp
  /** Only a history with the hostile tenant can show the bug. */
  readonly isUnfair?: true
}

export const BUGS: readonly PlantedBug[] = [
  {
    name: 'steps are not fenced',
    sabotage: { durable: (world) => ({ ...world.store.durable, phases: unfenced(world) }) },
    noticed: /a fenced holder has advanced|(?:recorded|booked) \d+ times|was begun/,
  },
  {
    name: 'an intent is not committed before its effect is sent',
    sabotage: phasesWith((phases) => ({
      record: async (lease, step) => {
        if (step.phase?.kind !== 'intent') return phases.record(lease, step)
        return { kind: 'advanced', expiresAt: new Date(0) }
      },
    })),
    noticed: /charged twice|after the provider dropped it|a fenced holder has advanced/,
  },
  {
    name: 'an open intent is sent again without asking',
    sabotage: phasesWith((phases) => ({
      load: async (recordId) => {
        const operation = await phases.load(recordId)
        if (operation === undefined) return undefined
        const done = operation.phases.filter(({ state }) => state === 'done')
        return { ...operation, phases: done }
      },
    })),
    noticed: /charged twice|after the provider dropped it/,
  },
  {
    name: 'a relay settles without a token',
    sabotage: {
      durable: (world) => {
        const { durable } = world.store
        const { outbox } = durable
        const settle: typeof outbox.settle = (settlements) =>
          outbox.settle(
            settlements.map((one) => ({ ...one, token: world.takerOf(one.id) ?? one.token })),
          )
        return { ...durable, outbox: outboxWith(world, { settle }) }
      },
    },
    noticed: /a fenced relay has changed|two relays run one message/,
  },
  {
    name: 'a "not found" is trusted before it is final',
    sabotage: { trustsNotFound: true },
    noticed: /charged twice|after the provider dropped it/,
  },
  {
    name: 'a message is done before its handler has ended',
    sabotage: { endsEarly: true },
    // If the answer was lost, another relay gets the message while the first handler still runs.
    noticed: /a message is done and was never delivered|two relays run one message|order:/,
  },
  {
    name: 'messages are relayed without regard to their partition',
    sabotage: {
      durable: (world) => {
        const { durable } = world.store
        const add: typeof durable.outbox.add = (tx, message) =>
          durable.outbox.add(tx, { ...message, partition: undefined })
        return { ...durable, outbox: outboxWith(world, { add }) }
      },
    },
    noticed: /order:/,
  },
  {
    name: 'a message is committed before the transaction that adds it',
    sabotage: {
      durable: (world) => {
        const { durable } = world.store
        const add: typeof durable.outbox.add = (_, message) =>
          world.store.transact(async (tx) => durable.outbox.add(tx, message))
        return { ...durable, outbox: outboxWith(world, { add }) }
      },
    },
    noticed: /mailed \d+ times|order:|divergence:/,
  },
  {
    name: 'a store returns the longest due work first, without turns',
    sabotage: { plant: () => replaced(SimulatedTurns.prototype, 'take', () => takeLongestDue) },
    noticed: /late:/,
    isUnfair: true,
  },
  {
    name: 'workers, relays and reconcilers have no reserve',
    sabotage: { hasNoReserve: true },
    noticed: /late:/,
    isUnfair: true,
  },
  {
    name: 'a relay never frees the places of handlers that exceed their time',
    sabotage: keepsPlaces((group) => group === HOOK || group === 'receipt'),
    noticed: /late: message/,
    isUnfair: true,
  },
  {
    name: 'a worker never frees the places of operations that exceed their time',
    sabotage: keepsPlaces((group) => group === HOG),
    noticed: /late: operation/,
    isUnfair: true,
  },
]

const takeLongestDue: SimulatedTurns['take'] = (due, { limit }) =>
  due.slice(0, limit).map(({ item }) => item)

function keepsPlaces(isKept: (group: string) => boolean): Sabotage {
  const take = (own: Places['take']) =>
    function (this: Places, lane: Lane) {
      const place = own.call(this, lane)
      return place && isKept(lane.group) ? { ...place, overdue: () => undefined } : place
    }
  return { plant: () => replaced(Places.prototype, 'take', take) }
}

/** Replaces a method. Returns the function that restores it. */
function replaced<Of extends object, Name extends keyof Of>(
  of: Of,
  name: Name,
  change: (own: Of[Name]) => Of[Name],
): () => void {
  const own = of[name]
  of[name] = change(own)
  return () => {
    of[name] = own
  }
}

function phasesWith(change: (phases: PhaseStore) => Partial<PhaseStore>): Sabotage {
  return {
    durable: ({ store: { durable } }) => {
      return { ...durable, phases: { ...durable.phases, ...change(durable.phases) } }
    },
  }
}

function outboxWith({ store: { durable } }: World, change: Partial<OutboxStore>): OutboxStore {
  const { outbox } = durable
  return {
    add: (tx, message) => outbox.add(tx, message),
    claim: (request) => outbox.claim(request),
    settle: (settlements) => outbox.settle(settlements),
    renew: (leases, leaseMs) => outbox.renew(leases, leaseMs),
    read: (id) => outbox.read(id),
    list: (query) => outbox.list(query),
    prune: (request) => outbox.prune(request),
    ...change,
  }
}

/** Accepts the step of any caller as a step of the holder. */
function unfenced(world: World): PhaseStore {
  const { store } = world
  const { phases } = store.durable
  const record: PhaseStore['record'] = (lease, step) =>
    phases.record(world.holderOf(lease.identity) ?? lease, step)
  return {
    ...phases,
    record,
    advance: async (lease, work) => {
      let outcome: StepOutcome | undefined
      await store.transact(async (tx) => {
        outcome = await record(lease, await work(tx))
      })
      return outcome!
    },
  }
}
