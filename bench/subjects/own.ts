/** The engine of this package on one of its stores. */
import { createEngine } from '../../src/core/engine/engine.ts'
import type { Engine } from '../../src/core/engine/engine-contract.ts'
import type { Work } from '../../src/core/attempt/run-context.ts'
import type { Store } from '../../src/core/store/store.ts'
import { createFingerprinter } from '../../src/http/fingerprint/fingerprint.ts'
import type { Places } from '../run/contract.ts'
import type { Counter, Subject } from '../run/subject.ts'
import { FINGERPRINT, REPLY, REPLY_BYTES, REQUEST, SCOPE } from '../run/work.ts'
import { paymentRows, type WritePayment } from './payment-rows.ts'
import { openStore, type StoreName } from './stores.ts'

export interface OwnOptions {
  readonly store: StoreName
  /** The handler writes a row in the transaction that completes the key. */
  readonly inTransaction?: boolean
  /** From JSON to JSON, like the peers: hashes the request, writes and reads the reply. */
  readonly fromJson?: boolean
  /** One row per call, with this many calls at once, to measure the benefit of batching. */
  readonly singleCalls?: number
  readonly places: Places
}

export interface OwnSubject extends Subject {
  readonly engine: Engine
}

export async function openOwn(options: OwnOptions, counter: Counter): Promise<OwnSubject> {
  const subject = await openBytes(options, counter)
  return options.fromJson === true ? jsonSubject(subject, counter) : subject
}

async function openBytes(options: OwnOptions, counter: Counter): Promise<OwnSubject> {
  if (options.store === 'memory') return openMemory(options.places, counter)
  const { store, flush, close, ...opened } = await openStore(options.store, options.places)
  const work =
    options.inTransaction === true
      ? inTransaction(await paymentRows(options.store, { store, close, ...opened }), counter)
      : plain(counter)
  const engine = createEngine({ store: oneByOne(store, options.singleCalls) })
  return {
    engine,
    run: (key) => runOn(engine, key, work),
    ...(flush === undefined ? {} : { reset: async () => void (await flush()) }),
    async close() {
      await engine.close({ graceMs: 1_000 })
      await close()
    },
  }
}

/** The store keeps everything for a day, so each round gets a new one. */
async function openMemory(places: Places, counter: Counter): Promise<OwnSubject> {
  const fresh = async () => createEngine({ store: (await openStore('memory', places)).store })
  let engine = await fresh()
  const work = plain(counter)
  return {
    get engine() {
      return engine
    },
    run: (key) => runOn(engine, key, work),
    async reset() {
      await engine.close()
      engine = await fresh()
    },
    close: async () => void (await engine.close()),
  }
}

/** Accepts only a recorded reply. */
async function runOn(
  engine: Engine,
  key: string,
  work: Work,
  fingerprint = FINGERPRINT,
): Promise<Uint8Array> {
  const outcome = await engine.run({ scope: SCOPE, key, fingerprint }, work)
  if (outcome.kind === 'ran' || outcome.kind === 'replayed') return outcome.result
  throw new Error(`expected a reply, got ${outcome.kind}`)
}

function jsonSubject(subject: OwnSubject, counter: Counter): OwnSubject {
  const fingerprinter = createFingerprinter()
  const work: Work = () => {
    counter.runs++
    return Buffer.from(JSON.stringify(REPLY))
  }
  const run = async (key: string): Promise<unknown> => {
    const fingerprint = fingerprinter.current({
      method: 'POST',
      path: '/payments',
      query: '',
      mediaType: 'application/json',
      body: { kind: 'value', value: REQUEST },
    })
    const result = await runOn(subject.engine, key, work, fingerprint)
    return JSON.parse(Buffer.from(result).toString())
  }
  const { reset, close } = subject
  return {
    get engine() {
      return subject.engine
    },
    run,
    ...(reset === undefined ? {} : { reset }),
    close,
  }
}

function plain(counter: Counter): Work {
  return () => {
    counter.runs++
    return REPLY_BYTES
  }
}

/** The row of the payment and the completion of its key are one commit. */
function inTransaction(write: WritePayment, counter: Counter): Work {
  return (context) =>
    context.transaction((tx) => {
      counter.runs++
      const written = write(tx, context.deterministicId('payment'))
      return written === undefined ? REPLY_BYTES : written.then(() => REPLY_BYTES)
    })
}

/** The same store with one row per call, and this many calls at once. */
function oneByOne(store: Store, flushesMax: number | undefined): Store {
  if (flushesMax === undefined) return store
  return {
    name: store.name,
    batching: { rowsMax: 1, flushesMax },
    claim: (requests) => store.claim(requests),
    settle: (settlements) => store.settle(settlements),
    renew: (renewals) => store.renew(renewals),
    resolve: (verdicts) => store.resolve(verdicts),
    sweep: (request) => store.sweep(request),
    reap: (request) => store.reap(request),
    read: (ref) => store.read(ref),
    list: (query) => store.list(query),
  }
}
