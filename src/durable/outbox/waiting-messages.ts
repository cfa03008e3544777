import type { MessageRun } from './message-run.ts'
import type { Lane } from '../places/places.ts'

type Tenants = Map<string, MessageRun[]>

export function laneOf({ message: { topic, tenant = '' } }: MessageRun): Lane {
  return { group: topic, tenant }
}

/**
 * Messages that a relay has claimed and not started. They leave in turns: one of each topic, and
 * within a topic one of each tenant. A map keeps the insertion order of its keys, so a topic or
 * tenant that had its turn is deleted and added again.
 */
export class WaitingMessages {
  readonly #topics = new Map<string, Tenants>()
  readonly #ofTenant = new Map<string, number>()
  #size = 0

  get size(): number {
    return this.#size
  }

  ofTopic(topic: string): number {
    let count = 0
    for (const runs of this.#topics.get(topic)?.values() ?? []) count += runs.length
    return count
  }

  /** Messages by tenant. */
  get ofTenant(): ReadonlyMap<string, number> {
    return this.#ofTenant
  }

  push(run: MessageRun): void {
    const { group, tenant } = laneOf(run)
    const tenants: Tenants = this.#topics.get(group) ?? new Map<string, MessageRun[]>()
    const runs = tenants.get(tenant) ?? []
    this.#topics.set(group, tenants.set(tenant, runs))
    runs.push(run)
    this.#count(tenant, 1)
  }

  /** Takes out the next message whose lane may start. */
  next(mayStart: (lane: Lane) => boolean): MessageRun | undefined {
    for (const [group, tenants] of this.#topics) {
      for (const [tenant, runs] of tenants) {
        if (!mayStart({ group, tenant })) continue
        const run = runs.shift()!
        tenants.delete(tenant)
        if (runs.length > 0) tenants.set(tenant, runs)
        this.#topics.delete(group)
        if (tenants.size > 0) this.#topics.set(group, tenants)
        this.#count(tenant, -1)
        return run
      }
    }
    return undefined
  }

  /** Counts the messages of the lanes that pass `test`. */
  count(test: (lane: Lane) => boolean): number {
    let count = 0
    for (const [group, tenants] of this.#topics) {
      for (const [tenant, runs] of tenants) if (test({ group, tenant })) count += runs.length
    }
    return count
  }

  /** Takes out all messages that pass `test`. */
  take(test: (run: MessageRun) => boolean): MessageRun[] {
    const taken: MessageRun[] = []
    for (const [topic, tenants] of this.#topics) {
      for (const [tenant, runs] of tenants) {
        const rest = runs.filter((run) => !test(run))
        if (rest.length === runs.length) continue
        if (rest.length > 0) tenants.set(tenant, rest)
        else tenants.delete(tenant)
        this.#count(tenant, rest.length - runs.length)
        taken.push(...runs.filter(test))
      }
      if (tenants.size === 0) this.#topics.delete(topic)
    }
    return taken
  }

  #count(tenant: string, change: number): void {
    const count = (this.#ofTenant.get(tenant) ?? 0) + change
    if (count > 0) this.#ofTenant.set(tenant, count)
    else this.#ofTenant.delete(tenant)
    this.#size += change
  }
}
