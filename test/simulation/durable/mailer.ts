/** The receiver of receipts. Records which relay delivers each of them, and when. */
import { sleep } from '../../../src/core/time/clock.ts'
import type { RelayMessage, RelayResult } from '../../../src/durable/outbox/relay-contract.ts'
import { isHostile } from './hostile.ts'
import type { DurableNode } from './node.ts'
import type { Receipt } from './payment.ts'
import { TIMES } from './times.ts'
import type { World } from './world.ts'

/** The fate of one message. */
export const MAIL_FAULTS = [
  'fails',
  'fails_after',
  /** Takes longer than a lease, so the lease must be renewed. */
  'slow',
  /** Delivers, and then its handler hangs until the world has healed. */
  'hangs',
  /** Refused permanently: an operator must act. */
  'dead',
  /** Records the provider id before the message is done. */
  'notes',
] as const

export type MailFault = (typeof MAIL_FAULTS)[number] | 'ok'

export interface Delivery extends Receipt {
  readonly messageId: string
}

interface Handling {
  readonly node: DurableNode
  readonly message: RelayMessage
  readonly jumpsBefore: number
}

export class Mailer {
  readonly delivered: Delivery[] = []
  readonly #world: World
  readonly #handling = new Map<string, Set<Handling>>()

  constructor(world: World) {
    this.#world = world
  }

  async handle(node: DurableNode, message: RelayMessage): Promise<RelayResult | undefined> {
    const { hostile, fairness } = this.#world
    fairness.begun(message.id)
    if (hostile?.isOver === false && isHostile(message)) {
      return hostile.hang(node, message.signal, true)
    }
    const handling = this.#enter(node, message)
    try {
      return await this.#deliver(node, message)
    } finally {
      this.#handling.get(message.id)?.delete(handling)
    }
  }

  #enter(node: DurableNode, message: RelayMessage): Handling {
    const { id } = message
    const jumpsBefore = node.jumpsBefore.get(id) ?? 0
    const others = this.#handling.get(id) ?? new Set()
    // A lease in wall time ends early when the wall clock jumps forward, and its holder cannot
    // detect that.
    const mayOverlap = (taken: number) => taken !== this.#world.forwardJumps
    for (const other of others) {
      const isHeld = other.node.running && !other.message.signal.aborted
      if (isHeld && !mayOverlap(jumpsBefore) && !mayOverlap(other.jumpsBefore)) {
        this.#world.violate('two relays run one message at the same time')
      }
    }
    const handling = { node, message, jumpsBefore }
    this.#handling.set(id, others.add(handling))
    return handling
  }

  async #deliver(node: DurableNode, message: RelayMessage): Promise<RelayResult | undefined> {
    const { id: messageId } = message
    const fault = this.#world.next('mail') ?? 'ok'
    await node.turn('enters the mailer')
    if (fault === 'fails') throw new Error('no route to host')
    if (fault === 'dead') return { kind: 'dead_letter', error: new Error('no such address') }
    if (fault === 'slow') await sleep(node.clock, TIMES.leaseMs * 1.5)
    this.delivered.push({ messageId, ...(message.payload as Receipt) })
    await node.turn('has mailed')
    if (fault === 'notes') await message.note(`mail of ${messageId}`)
    if (fault === 'fails_after') throw new Error('socket hang up')
    if (fault === 'hangs') await node.hear('that it hung', this.#world.healing)
    return undefined
  }
}
