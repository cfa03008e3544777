import { systemClock } from '../core/clock.ts'
import { InvalidOptionsError } from '../core/errors.ts'
import { describe, optionalFunction, rejectUnknownOptions, wholeNumber } from '../core/options.ts'
import { unlessAborted } from './unless-aborted.ts'

/** One line of a ledger. Beside its id it has whatever both sides should agree about. */
export interface LedgerEntry {
  readonly id: string
}

export type Ledger<Entry extends LedgerEntry> = Iterable<Entry> | AsyncIterable<Entry>

export interface CompareOptions<Ours extends LedgerEntry, Theirs extends LedgerEntry> {
  /**
   * What we have, by ascending id: byte by byte, as `ORDER BY id COLLATE "C"` (PostgreSQL),
   * a binary column (MySQL), or JavaScript's own `sort()` does it.
   */
  ours: Ledger<Ours>

  /** What the provider has, in the same order. */
  theirs: Ledger<Theirs>

  /**
   * Whether two entries of one id say the same.
   *
   * @default every field of one is a field of the other with the same value (dates by their time)
   */
  compare?: (ours: Ours, theirs: Theirs) => boolean

  /**
   * How many entries of each kind of difference are kept for the report; all are counted.
   *
   * @default 100
   */
  samplesMax?: number

  /** Ends the comparison, which then rejects with its reason. */
  signal?: AbortSignal
}

export interface LedgerReport<
  Ours extends LedgerEntry = LedgerEntry,
  Theirs extends LedgerEntry = LedgerEntry,
> {
  /** Ids that both have, with entries that say the same. */
  readonly matched: number
  /** We have it, the provider has not. */
  readonly missing_theirs: Findings<Ours>
  /** The provider has it, we have not. */
  readonly missing_ours: Findings<Theirs>
  /** Both have it, and they say different things. */
  readonly different: Findings<{ readonly ours: Ours; readonly theirs: Theirs }>
  /** A second, third … entry of one id, in our ledger. */
  readonly duplicate_ours: Findings<Ours>
  /** A second, third … entry of one id, at the provider: done twice, perhaps. */
  readonly duplicate_theirs: Findings<Theirs>
}

export interface Findings<Sample> {
  readonly count: number
  /** The first of them. */
  readonly samples: readonly Sample[]
}

/** How many entries of a report are not as they should be. */
export function differencesOf(report: LedgerReport): number {
  const { missing_theirs, missing_ours, different, duplicate_ours, duplicate_theirs } = report
  const kinds = [missing_theirs, missing_ours, different, duplicate_ours, duplicate_theirs]
  return kinds.reduce((sum, { count }) => sum + count, 0)
}

const KNOWN = ['ours', 'theirs', 'compare', 'samplesMax', 'signal'] as const
const SAMPLES = 100
const SAMPLES_MAX = 10_000
/** Entries between two moments for others, where a ledger is all in memory and never waits. */
const ENTRIES_AT_A_TIME = 1_000

/**
 * Merges two ledgers as they come, entry by entry: neither is ever in memory as a whole. Rejects
 * where one of them is not in order, because everything after that would be wrong.
 */
export async function compareLedgers<Ours extends LedgerEntry, Theirs extends LedgerEntry>(
  options: CompareOptions<Ours, Theirs>,
): Promise<LedgerReport<Ours, Theirs>> {
  rejectUnknownOptions('compareLedgers', options, KNOWN)
  optionalFunction('compareLedgers.compare', options.compare)
  const { compare = isSame, signal } = options
  const samplesMax = checkSamplesMax('compareLedgers', options.samplesMax)
  const found = new Found<Ours, Theirs>(samplesMax)
  const ours = new Reader('ours', options.ours, (entry) => found.duplicateOurs.add(entry))
  const theirs = new Reader('theirs', options.theirs, (entry) => found.duplicateTheirs.add(entry))
  try {
    await unlessAborted(signal, merge(ours, theirs, { found, compare, signal }))
  } finally {
    // Only where the comparison has failed: that is the error to know of, not this one's.
    await Promise.allSettled([ours.close(), theirs.close()])
  }
  return found.report()
}

export function checkSamplesMax(where: string, samplesMax: number | undefined): number {
  const bounds = { fallback: SAMPLES, min: 0, max: SAMPLES_MAX }
  return wholeNumber(`${where}.samplesMax`, samplesMax, bounds)
}

interface Merging<Ours, Theirs> {
  readonly found: Found<Ours, Theirs>
  readonly compare: (ours: Ours, theirs: Theirs) => boolean
  readonly signal: AbortSignal | undefined
}

async function merge<Ours extends LedgerEntry, Theirs extends LedgerEntry>(
  ours: Reader<Ours>,
  theirs: Reader<Theirs>,
  merging: Merging<Ours, Theirs>,
): Promise<void> {
  // Both, before a failure of one is known: a stream that was never read from cannot be closed.
  await nextOf(ours, theirs)
  for (let n = 1; ours.entry !== undefined || theirs.entry !== undefined; n++) {
    merging.signal?.throwIfAborted()
    if (n % ENTRIES_AT_A_TIME === 0) await letOthersIn()
    await step(ours, theirs, merging)
  }
}

async function step<Ours extends LedgerEntry, Theirs extends LedgerEntry>(
  ours: Reader<Ours>,
  theirs: Reader<Theirs>,
  { found, compare }: Merging<Ours, Theirs>,
): Promise<void> {
  const [our, their] = [ours.entry, theirs.entry]
  if (our !== undefined && (their === undefined || our.id < their.id)) {
    found.missingTheirs.add(our)
    return ours.next()
  }
  if (their !== undefined && (our === undefined || their.id < our.id)) {
    found.missingOurs.add(their)
    return theirs.next()
  }
  if (our === undefined || their === undefined) return
  if (compare(our, their)) found.matched++
  else found.different.add({ ours: our, theirs: their })
  await nextOf(ours, theirs)
}

/** Where one fails, the other has come to its next entry, too, and can be closed. */
async function nextOf(...readers: readonly { next(): Promise<void> }[]): Promise<void> {
  const ends = await Promise.allSettled(readers.map((reader) => reader.next()))
  const failed = ends.find((end) => end.status === 'rejected')
  if (failed !== undefined) throw failed.reason
}

/** One ledger, from entry to entry of another id. */
class Reader<Entry extends LedgerEntry> {
  readonly #name: string
  readonly #iterator: Iterator<Entry> | AsyncIterator<Entry>
  readonly #onDuplicate: (entry: Entry) => void
  #isOver = false
  /** It was asked for an entry, and has not answered. */
  #isAsked = false
  /** The one it has come to; `undefined` at the end. */
  entry: Entry | undefined

  constructor(name: string, ledger: Ledger<Entry>, onDuplicate: (entry: Entry) => void) {
    this.#name = name
    this.#iterator = iteratorOf(name, ledger)
    this.#onDuplicate = onDuplicate
  }

  async next(): Promise<void> {
    const before = this.entry
    let count = 0
    for (;;) {
      const next = await this.#ask()
      if (next.done === true) {
        this.#isOver = true
        this.entry = undefined
        return
      }
      const entry = this.#checked(next.value)
      if (before === undefined || entry.id > before.id) {
        this.entry = entry
        return
      }
      if (entry.id < before.id) throw this.#outOfOrder(before, entry)
      this.#onDuplicate(entry)
      if (++count % ENTRIES_AT_A_TIME === 0) await letOthersIn()
    }
  }

  async close(): Promise<void> {
    if (this.#isOver) return
    this.#isOver = true
    const closed = this.#iterator.return?.()
    // One that hangs ends whenever it likes, and nobody waits for that.
    if (this.#isAsked) Promise.resolve(closed).catch(() => undefined)
    else await closed
  }

  async #ask(): Promise<IteratorResult<Entry, unknown>> {
    this.#isAsked = true
    try {
      return await this.#iterator.next()
    } finally {
      this.#isAsked = false
    }
  }

  #checked(entry: Entry): Entry {
    const id: unknown = (entry as Entry | null | undefined)?.id
    if (typeof id === 'string' && id !== '') return entry
    throw new InvalidOptionsError(
      `compareLedgers.${this.#name}: every entry needs an id, a text that is not empty; one has ` +
        describe(id),
    )
  }

  #outOfOrder(before: Entry, entry: Entry): InvalidOptionsError {
    return new InvalidOptionsError(
      `compareLedgers.${this.#name} is not sorted by id: ${describe(entry.id)} comes after ` +
        `${describe(before.id)}. Sort byte by byte (COLLATE "C" in PostgreSQL)`,
    )
  }
}

function iteratorOf<Entry extends LedgerEntry>(
  name: string,
  ledger: Ledger<Entry>,
): Iterator<Entry> | AsyncIterator<Entry> {
  const isObject = typeof ledger === 'object' && ledger !== null
  if (isObject && Symbol.asyncIterator in ledger) return ledger[Symbol.asyncIterator]()
  if (isObject && Symbol.iterator in ledger) return ledger[Symbol.iterator]()
  throw new InvalidOptionsError(
    `compareLedgers.${name} must be an iterable of entries, got ${describe(ledger)}`,
  )
}

class Found<Ours, Theirs> {
  matched = 0
  readonly missingTheirs: Counted<Ours>
  readonly missingOurs: Counted<Theirs>
  readonly different: Counted<{ readonly ours: Ours; readonly theirs: Theirs }>
  readonly duplicateOurs: Counted<Ours>
  readonly duplicateTheirs: Counted<Theirs>

  constructor(samplesMax: number) {
    this.missingTheirs = new Counted(samplesMax)
    this.missingOurs = new Counted(samplesMax)
    this.different = new Counted(samplesMax)
    this.duplicateOurs = new Counted(samplesMax)
    this.duplicateTheirs = new Counted(samplesMax)
  }

  report() {
    return {
      matched: this.matched,
      missing_theirs: this.missingTheirs.findings(),
      missing_ours: this.missingOurs.findings(),
      different: this.different.findings(),
      duplicate_ours: this.duplicateOurs.findings(),
      duplicate_theirs: this.duplicateTheirs.findings(),
    }
  }
}

class Counted<Sample> {
  readonly #samplesMax: number
  readonly #samples: Sample[] = []
  #count = 0

  constructor(samplesMax: number) {
    this.#samplesMax = samplesMax
  }

  add(sample: Sample): void {
    this.#count++
    if (this.#samples.length < this.#samplesMax) this.#samples.push(sample)
  }

  findings(): Findings<Sample> {
    return { count: this.#count, samples: this.#samples }
  }
}

/** Rather one false alarm than a difference that nobody hears of: what is no value is different. */
function isSame(ours: object, theirs: object): boolean {
  const names = new Set([...Object.keys(ours), ...Object.keys(theirs)])
  return [...names].every((name) => {
    const our: unknown = Reflect.get(ours, name)
    const their: unknown = Reflect.get(theirs, name)
    if (our instanceof Date && their instanceof Date) return our.getTime() === their.getTime()
    return Object.is(our, their)
  })
}

function letOthersIn(): Promise<void> {
  return new Promise((resolve) => systemClock.soon(resolve))
}
