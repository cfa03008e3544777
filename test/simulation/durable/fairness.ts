/**
 * The fairness bound. While a hostile tenant floods, each due operation, message and unknown
 * record of another tenant starts within
 *
 *   2 × look + beside × (theirs + RESERVE_EVERY_MS) + held
 *
 * - `look` is the longest pause between two polls of a worker, relay or reconciler: `pollMs`, or
 *   RESERVE_EVERY_MS if that is longer. It counts twice, because a node skips work for one `pollMs`
 *   when another node has just had it.
 * - `beside` counts the work of the other tenants that was due or in progress at the same time. All
 *   of it may run first in a single place of the reserve, and each holds that place for `theirs`.
 * - `held` is 0 if the hostile tenant has no work of the same operation or topic: a place of the
 *   reserve is then free. Otherwise a tenant that already has a place waits for an ordinary one,
 *   and `held` is the time limit of the hostile calls.
 *
 * Without a reserve the places are divided by turns alone, and the bound is
 *
 *   (⌈turns / places⌉ + 1) × limit + 2 × look
 *
 * - `turns` is the work that may run first: in each lane (an operation or topic) one per tenant.
 * - `limit` is the longest time limit of a hostile call: no place is held for longer.
 *
 * Time counts from the moment at which the work is due, or from the last crash, stall or return of
 * a node, and only while a node runs and the store answers.
 */
import type { MessageView } from '../../../src/core/store/durable-store.ts'
import { HOG } from './hostile.ts'
import { PLACES, type DurableNode } from './node.ts'
import { messagesIn, recordsIn } from './operator.ts'
import { TIMES } from './times.ts'
import type { World } from './world.ts'

type Part = 'operation' | 'message' | 'unknown'

interface Work {
  readonly part: Part
  /** Id of its record or message. */
  readonly id: string
}

/** Work that is due and has not started. */
interface Due extends Work {
  readonly key: string
  /** The operation or topic of the work. */
  readonly lane: string
  readonly tenant: string
}

interface Wait {
  readonly sinceMs: number
  /** Other work of these tenants that was due or in progress during the wait. */
  readonly beside: Set<string>
  readonly lanes: Set<string>
  readonly tenants: Set<string>
  /** Number of works of the same lane and tenant that were due earlier. */
  readonly ahead: number
}

/** The same value as in the package: the pause between two polls for the reserve. */
const RESERVE_EVERY_MS = 250
const LOOKS = 2

export class Fairness {
  readonly #world: World
  readonly #waits = new Map<string, Wait>()
  /** By message: the node that has claimed it and not started it. */
  readonly #taken = new Map<string, DurableNode>()

  constructor(world: World) {
    this.#world = world
  }

  get isAnyWaiting(): boolean {
    return this.#waits.size > 0
  }

  taken(messageId: string, node: DurableNode): void {
    this.#taken.set(messageId, node)
  }

  begun(messageId: string): void {
    this.#taken.delete(messageId)
  }

  /** A node was lost or came back: the wait of due work starts again. */
  disturb(): void {
    this.#waits.clear()
  }

  /** Records the due work, and reports work that has been due for too long. */
  async look(): Promise<void> {
    if (!this.#world.nodes.some(({ serves, running }) => serves && running)) return this.disturb()
    const due = [...(await this.#dueRecords()), ...(await this.#dueMessages())]
    const busy = await this.#busy()
    for (const key of this.#waits.keys()) {
      if (!due.some((one) => one.key === key)) this.#waits.delete(key)
    }
    const nowMs = this.#world.clock.monotonicMs()
    for (const one of due) {
      const wait = this.#waitOf(one, due)
      for (const other of due) note(wait, one, other)
      for (const other of busy) noteBusy(wait, one, other)
      const waitedMs = nowMs - wait.sinceMs
      const boundMs = this.#boundMs(one, wait)
      if (waitedMs <= boundMs) continue
      this.#world.violate(
        `late: ${one.part} ${one.lane} of ${one.tenant} has waited ${waitedMs} ms; the bound is ` +
          `${boundMs} ms`,
      )
    }
  }

  #waitOf(one: Due, due: readonly Due[]): Wait {
    const known = this.#waits.get(one.key)
    if (known !== undefined) return known
    const isAhead = ({ key, lane, tenant }: Due) =>
      this.#waits.has(key) && lane === one.lane && tenant === one.tenant
    const wait: Wait = {
      sinceMs: this.#world.clock.monotonicMs(),
      beside: new Set(),
      lanes: new Set(),
      tenants: new Set(),
      ahead: due.filter(isAhead).length,
    }
    this.#waits.set(one.key, wait)
    return wait
  }

  #boundMs({ part, lane }: Due, wait: Wait): number {
    const { plan } = this.#world.hostile!
    const { places, lookMs, holdMs, theirsMs } = this.#settingOf(part)
    const flooded = this.#flooded(part)
    const isFlooded = flooded.includes(lane)
    if (plan.hasReserve) {
      const besideMs = wait.beside.size * (theirsMs + RESERVE_EVERY_MS)
      return LOOKS * lookMs + besideMs + (isFlooded ? holdMs(lane) : 0)
    }
    const lanes = new Set([...flooded, ...wait.lanes, lane]).size
    const tenants = wait.tenants.size + 1 + (isFlooded ? 1 : 0)
    // A relay claims up to as many messages in advance as it has places. Each may run first.
    const inAdvance = part === 'message' ? 2 * places : 0
    const rounds = Math.ceil((lanes * tenants * (wait.ahead + 1) + inAdvance) / places) + 1
    return rounds * Math.max(...flooded.map(holdMs)) + LOOKS * lookMs
  }

  #flooded(part: Part): string[] {
    const { floodedTopics, floodedOperations } = this.#world.hostile!
    return part === 'message' ? floodedTopics : floodedOperations
  }

  #settingOf(part: Part) {
    const { hangsInRun } = this.#world.hostile!.plan
    switch (part) {
      case 'operation':
        return {
          places: PLACES.worker,
          lookMs: Math.max(TIMES.workerPollMs, RESERVE_EVERY_MS),
          // The query for its operation hangs as well.
          holdMs: (lane: string) => {
            if (lane !== HOG) return TIMES.answerMs
            return hangsInRun ? TIMES.runTimeoutMs : 2 * TIMES.answerMs
          },
          theirsMs: TIMES.slowMs,
        }
      case 'message':
        return {
          places: PLACES.relay,
          lookMs: Math.max(TIMES.relayPollMs, RESERVE_EVERY_MS),
          holdMs: () => TIMES.handlerMs,
          theirsMs: 0,
        }
      case 'unknown':
        return {
          places: PLACES.reconciler,
          lookMs: Math.max(TIMES.reconcilerPollMs, RESERVE_EVERY_MS),
          holdMs: () => TIMES.answerMs,
          theirsMs: 0,
        }
    }
  }

  async #dueRecords(): Promise<Due[]> {
    const { clock, store } = this.#world
    const records = await recordsIn(this.#world, ['pending', 'failed_retryable', 'unknown'])
    const due: Due[] = []
    for (const { recordId, tenant, state, attempt, tries, reconcileAt } of records) {
      if (reconcileAt === undefined || reconcileAt.getTime() > clock.nowMs()) continue
      const operation = await store.durable.phases.load(recordId)
      if (operation === undefined) continue
      const part = state === 'unknown' ? 'unknown' : 'operation'
      const key = `${part} ${recordId} ${part === 'unknown' ? tries : attempt}`
      due.push({ key, part, id: recordId, lane: operation.name, tenant })
    }
    return due
  }

  /** The head of each partition, the messages of lost nodes, and those claimed in advance. */
  async #dueMessages(): Promise<Due[]> {
    const ready = await messagesIn(this.#world, 'ready')
    const held = await messagesIn(this.#world, 'held')
    const dead = await messagesIn(this.#world, 'dead')
    const isHead = (one: MessageView) =>
      ![...held, ...dead, ...ready.slice(0, ready.indexOf(one))].some(
        ({ partition }) => partition === one.partition,
      )
    const nowMs = this.#world.clock.nowMs()
    const isDue = ({ dueAt }: MessageView) => dueAt !== undefined && dueAt.getTime() <= nowMs
    const isInAdvance = ({ id }: MessageView) => this.#taken.get(id)?.running === true
    const lapsed = held.filter(isDue)
    const inAdvance = held.filter((one) => !isDue(one) && isInAdvance(one))
    return [
      ...ready.filter((one) => isDue(one) && isHead(one)).map((one) => toDue(one, one.attempt)),
      ...lapsed.map((one) => toDue(one, one.attempt)),
      // A claim counts as an attempt.
      ...inAdvance.map((one) => toDue(one, one.attempt - 1)),
    ]
  }

  /** Work of the other tenants that is in progress. */
  async #busy(): Promise<Work[]> {
    const running = await recordsIn(this.#world, ['in_progress'])
    const held = await messagesIn(this.#world, 'held')
    return [
      ...running.map(({ recordId }): Work => ({ part: 'operation', id: recordId })),
      ...held.map(({ id }): Work => ({ part: 'message', id })),
    ]
  }
}

function noteBusy({ beside }: Wait, one: Work, other: Work): void {
  if (other.part === one.part && other.id !== one.id) beside.add(other.id)
}

function note({ beside, lanes, tenants }: Wait, one: Due, other: Due): void {
  if (other.id === one.id || other.part !== one.part) return
  beside.add(other.id)
  lanes.add(other.lane)
  if (other.lane === one.lane && other.tenant !== one.tenant) tenants.add(other.tenant)
}

function toDue({ id, topic, tenant = '' }: MessageView, attempt: number): Due {
  return { key: `message ${id} ${attempt}`, part: 'message', id, lane: topic, tenant }
}
