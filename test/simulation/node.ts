/** One simulated process: its engine, and its connection to the store with the plan's faults. */
import { createEngine } from '../../src/core/engine/engine.ts'
import type { Engine } from '../../src/core/engine/engine-contract.ts'
import type {
  ClaimOutcome,
  ClaimRequest,
  Completion,
  Lease,
  SettleOutcome,
  Store,
} from '../../src/core/store/store.ts'
import { NEVER, SimProcess } from './process.ts'
import { TIMES, flush, runIdOf, type Effect, type World } from './world.ts'

/** Small limits, so that batches fill up and claims have to wait. */
const BATCHING = { rowsMax: 3, flushesMax: 2 } as const

export class SimNode extends SimProcess {
  readonly engine: Engine
  readonly world: World
  /** Set when the node was asked to close, possibly while it was stalled. */
  #isClosing = false
  #closing = false
  /** Runs that have already sent a claim. */
  readonly #claimed = new Set<number>()
  #claimsUnderWay = 0
  /** Claims may have been queued at the time of the close, and are sent after it. */
  #mayHaveQueued = false

  constructor(world: World, id: number) {
    super(world, id)
    this.world = world
    this.engine = createEngine({
      store: faultyStore(this),
      clock: this.clock,
      leaseMs: TIMES.leaseMs,
      runTimeoutMs: TIMES.runTimeoutMs,
      storeTimeoutMs: TIMES.storeTimeoutMs,
      settleTimeoutMs: TIMES.settleTimeoutMs,
      sweepEveryMs: TIMES.sweepEveryMs,
      reapEveryMs: 0,
      maxLapses: 3,
      onEvent: this.onEvent,
    })
  }

  /** Whether the node accepts work now and later. */
  get serves(): boolean {
    return this.alive && !this.#isClosing
  }

  get closing(): boolean {
    return this.#closing
  }

  /** A deployment: the engine is closed, and then the process ends. */
  close(): void {
    if (this.#isClosing) return
    this.#isClosing = true
    this.whenRunning(() => {
      this.#closing = true
      this.#mayHaveQueued = this.#claimsUnderWay >= BATCHING.flushesMax
      void this.#close()
    })
  }

  async #close(): Promise<void> {
    const { clock, runs } = this.world
    const deadlineMs = clock.monotonicMs() + TIMES.graceMs
    const { abandoned } = await this.engine.close({ graceMs: TIMES.graceMs })
    if (abandoned > 0 && clock.monotonicMs() < deadlineMs) {
      this.world.violate(`node ${this.id} closed before its grace period ended, and abandoned work`)
    }
    await flush()
    const open = runs.filter(({ node, ended, work }) => {
      return node === this && (!ended || work === 'running')
    })
    if (abandoned === 0 && open.length > 0) {
      this.world.violate(`node ${this.id} closed cleanly, but work still runs there`)
    }
    this.crash()
  }

  /** Queued claims may still be sent after `close()`, but no request may claim again after it. */
  async claim(requests: readonly ClaimRequest[], send: () => Promise<ClaimOutcome[]>) {
    for (const id of requests.map(runIdOf)) {
      if (this.#closing && !this.#mayHaveQueued && this.#claimed.has(id)) {
        this.world.violate(`node ${this.id} is closing, and a waiting duplicate claims again`)
      }
      this.#claimed.add(id)
    }
    this.#claimsUnderWay++
    try {
      return await send()
    } finally {
      this.#claimsUnderWay--
    }
  }
}

/** The shared store as one process reaches it, over a network with the faults of the plan. */
function faultyStore(node: SimNode): Store {
  const { world } = node
  const call = async <Answer>(name: string, write: () => Promise<Answer>): Promise<Answer> => {
    if (!node.alive) return NEVER
    const fate = world.nextFate()
    if (fate === 'never') return NEVER
    if (fate === 'late') {
      world.clock.after(TIMES.lateMs, () => void write())
      return NEVER
    }
    await world.turn(`node ${node.id} sends ${name}`)
    if (fate === 'fail_before') throw new Error(`${name} failed before it was written`)
    const answer = await write()
    if (fate === 'lost') return NEVER
    await node.turn(`hears of ${name}`)
    if (fate === 'fail_after') throw new Error(`${name} failed after it was written`)
    return answer
  }
  const { store } = world
  return {
    name: `node-${node.id}`,
    batching: BATCHING,
    claim: (requests) => node.claim(requests, () => call('claim', () => world.claim(requests))),
    settle: (settlements) => call('settle', () => world.settle(settlements)),
    renew: (renewals) => call('renew', () => world.alone(() => store.renew(renewals))),
    resolve: (verdicts) => call('resolve', () => world.alone(() => store.resolve(verdicts))),
    sweep: ({ limit }) => call('sweep', () => world.sweep(limit)),
    reap: (request) => call('reap', () => world.alone(() => store.reap(request))),
    read: (ref) => call('read', () => store.read(ref)),
    list: (query) => call('list', () => store.list(query)),
    transaction: (lease, work) => transact(node, lease, work),
  }
}

/** The row that work writes in its transaction, invisible before the commit. */
export class SimTransaction {
  row: Effect | undefined

  insert(row: Effect): void {
    this.row = row
  }
}

/**
 * A database transaction: the work runs concurrently with other work, and the commit is one step.
 * The plan decides the fate of the commit; the worst is a commit that fails here and applies later.
 */
async function transact(
  node: SimNode,
  lease: Lease,
  work: (tx: unknown) => Completion | Promise<Completion>,
): Promise<SettleOutcome> {
  const { world } = node
  if (!node.alive) return NEVER
  const fate = world.nextFate()
  if (fate === 'never') return NEVER
  await node.turn('begins a transaction')
  if (fate === 'fail_before') throw new Error('the transaction did not begin')
  const refused = await world.begin(lease)
  if (refused !== undefined) return refused

  const tx = new SimTransaction()
  const completion = await work(tx)
  const commit = () => world.commit(lease, completion, tx.row!)
  await world.turn(`node ${node.id} sends a commit`)
  if (fate === 'late') {
    world.clock.after(TIMES.lateMs, () => void commit())
    await node.turn('hears nothing of its commit')
    throw new Error('the connection broke before the commit was answered')
  }
  const outcome = await commit()
  if (fate === 'lost') return NEVER
  await node.turn('hears of its commit')
  if (fate === 'fail_after') throw new Error('the connection broke after the commit')
  return outcome
}
