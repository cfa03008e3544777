import { systemClock } from '../../core/time/clock.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import {
  describe,
  optionalFunction,
  rejectUnknownOptions,
  wholeNumber,
} from '../../core/options.ts'
import { unlessAborted } from '../bounded-calls.ts'

/** One line of a ledger. Its other fields are those that both sides must agree about. */
export interface LedgerEntry {
  readonly id: string
}

export type Ledger<Entry extends LedgerEntry> = Iterable<Entry> | AsyncIterable<Entry>

export interface CompareOptions<Ours extends LedgerEntry, Theirs extends LedgerEntry> {
  /**
   * Our entries, by ascending id. The order is by bytes: `ORDER BY id COLLATE "C"` in PostgreSQL, a
   * binary column in MySQL, or `sort()` in JavaScript.
   */
  ours: Ledger<Ours>

  /** The provider's entries, in the same order. */
  theirs: Ledger<Theirs>

  /**
   * Whether two entries with the same id agree.
   *
   * @default both have the same fields with the same values; dates are compared by their time
   */
  compare?: (ours: Ours, theirs: Theirs) => boolean

  /**
   * How many entries of each kind of difference the report contains, 0 to 10_000; all are counted.
   * More samples cost memory.
   *
   * @default 100
   */
  samplesMax?: number

  /** Aborts the comparison, which then rejects with the reason of the signal. @default none */
  signal?: AbortSignal
}

export interface LedgerReport<
  Ours extends LedgerEntry = LedgerEntry,
  Theirs extends LedgerEntry = LedgerEntry,
> {
  /** Ids that both ledgers have, with entries that agree. */
  readonly matched: number
  /** Entries that we have and the provider does not. */
  readonly missing_theirs: Findings<Ours>
  /** Entries that the provider has and we do not. */
  readonly missing_ours: Findings<Theirs>
  /** Entries that both have and that do not agree. */
  readonly different: Findings<{ readonly ours: Ours; readonly theirs: Theirs }>
  /** Further entries with the same id in our ledger. */
  readonly duplicate_ours: Findings<Ours>
  /** Further entries with the same id at the provider: possibly a second charge. */
  readonly duplicate_theirs: Findings<Theirs>
}

export interface Findings<Sample> {
  readonly count: number
  /** The first of them, at most `samplesMax`. */
  readonly samples: readonly Sample[]
}

/** How many entries of a report are not matched. */
export function differencesOf(report: LedgerReport): number {
  const { missing_theirs, missing_ours, different, duplicate_ours, duplicate_theirs } = report
  const kinds = [missing_theirs, missing_ours, different, duplicate_ours, duplicate_theirs]
  return kinds.reduce((sum, { count }) => sum + count, 0)
}

const KNOWN = ['ours', 'theirs', 'compare', 'samplesMax', 'signal'] as const
const SAMPLES = 100
const SAMPLES_MAX = 10_000
/** Entries between two yields to the event loop: a ledger in memory would block it otherwise. */
const ENTRIES_AT_A_TIME = 1_000

/**
 * Compares two ledgers entry by entry, without holding either in memory as a whole. Rejects if one
 * of them is not sorted, because the entries after that could not be matched.
 */
export async function compareLedgers<Ours extends LedgerEntry, Theirs extends LedgerEntry>(
  options: CompareOptions<Ours, Theirs>,
): Promise<LedgerReport<Ours, Theirs>> {
  rejectUnknownOptions('compareLedgers', options, KNOWN)
  optionalFunction('compareLedgers.compare', options.compare)
  const { compare = isSame, signal } = options
  const samplesMax = checkSamplesMax('compareLedgers', options.samplesMax)
  const found = new Differences<Ours, Theirs>(samplesMax)
  const ours = new Reader('ours', options.ours, (entry) => found.duplicateOurs.add(entry))
  const theirs = new Reader('theirs', options.theirs, (entry) => found.duplicateTheirs.add(entry))
  try {
    await unlessAborted(signal, merge(ours, theirs, { found, compare, signal }))
  } finally {
    // A ledger is still open only if the comparison failed; that error is the one to report.
    await Promise.allSettled([ours.close(), theirs.close()])
  }
  return found.report()
}

export function checkSamplesMax(where: string, samplesMax: number | undefined): number {
  const bounds = { fallback: SAMPLES, min: 0, max: SAMPLES_MAX }
  return wholeNumber(`${where}.samplesMax`, samplesMax, bounds)
}

interface Comparison<Ours, Theirs> {
  readonly found: Differences<Ours, Theirs>
  readonly compare: (ours: Ours, theirs: Theirs) => boolean
  readonly signal: AbortSignal | undefined
}

async function merge<Ours extends LedgerEntry, Theirs extends LedgerEntry>(
  ours: Reader<Ours>,
  theirs: Reader<Theirs>,
  comparison: Comparison<Ours, Theirs>,
): Promise<void> {
  // Reads from both before a failure of one is thrown: an unread stream cannot be closed.
  await nextOf(ours, theirs)
  for (let n = 1; ours.entry !== undefined || theirs.entry !== undefined; n++) {
    comparison.signal?.throwIfAborted()
    if (n % ENTRIES_AT_A_TIME === 0) await yieldToEventLoop()
    await step(ours, theirs, comparison)
  }
}

async function step<Ours extends LedgerEntry, Theirs extends LedgerEntry>(
  ours: Reader<Ours>,
  theirs: Reader<Theirs>,
  { found, compare }: Comparison<Ours, Theirs>,
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

/** Waits for all readers, even if one fails, so that the others can be closed. */
async function nextOf(...readers: readonly { next(): Promise<void> }[]): Promise<void> {
  const ends = await Promise.allSettled(readers.map((reader) => reader.next()))
  const failed = ends.find((end) => end.status === 'rejected')
  if (failed !== undefined) throw failed.reason
}

/** Steps through one ledger from id to id. */
class Reader<Entry extends LedgerEntry> {
  readonly #name: string
  readonly #iterator: Iterator<Entry> | AsyncIterator<Entry>
  readonly #onDuplicate: (entry: Entry) => void
  #isOver = false
  /** A call of `next` is pending. */
  #isReading = false
  /** The current entry; `undefined` at the end. */
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
      const next = await this.#read()
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
      if (++count % ENTRIES_AT_A_TIME === 0) await yieldToEventLoop()
    }
  }

  async close(): Promise<void> {
    if (this.#isOver) return
    this.#isOver = true
    const closed = this.#iterator.return?.()
    // A pending `next` may hang, so its end is not awaited.
    if (this.#isReading) Promise.resolve(closed).catch(() => undefined)
    else await closed
  }

  async #read(): Promise<IteratorResult<Entry, unknown>> {
    this.#isReading = true
    try {
      return await this.#iterator.next()
    } finally {
      this.#isReading = false
    }
  }

  #checked(entry: Entry): Entry {
    const id: unknown = (entry as Entry | null | undefined)?.id
    if (typeof id === 'string' && id !== '') return entry
    throw new InvalidOptionsError(
      `compareLedgers.${this.#name}: every entry needs an id that is a non-empty string, got ` +
        describe(id),
    )
  }

  #outOfOrder(before: Entry, entry: Entry): InvalidOptionsError {
    return new InvalidOptionsError(
      `compareLedgers.${this.#name} is not sorted by id: ${describe(entry.id)} comes after ` +
        `${describe(before.id)}. Sort by bytes (COLLATE "C" in PostgreSQL)`,
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

class Differences<Ours, Theirs> {
  matched = 0
  readonly missingTheirs: SampleCount<Ours>
  readonly missingOurs: SampleCount<Theirs>
  readonly different: SampleCount<{ readonly ours: Ours; readonly theirs: Theirs }>
  readonly duplicateOurs: SampleCount<Ours>
  readonly duplicateTheirs: SampleCount<Theirs>

  constructor(samplesMax: number) {
    this.missingTheirs = new SampleCount(samplesMax)
    this.missingOurs = new SampleCount(samplesMax)
    this.different = new SampleCount(samplesMax)
    this.duplicateOurs = new SampleCount(samplesMax)
    this.duplicateTheirs = new SampleCount(samplesMax)
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

class SampleCount<Sample> {
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

/** Object fields match only by identity: a false alarm is better than a missed difference. */
function isSame(ours: object, theirs: object): boolean {
  const names = new Set([...Object.keys(ours), ...Object.keys(theirs)])
  return [...names].every((name) => {
    const our: unknown = Reflect.get(ours, name)
    const their: unknown = Reflect.get(theirs, name)
    if (our instanceof Date && their instanceof Date) return our.getTime() === their.getTime()
    return Object.is(our, their)
  })
}

function yieldToEventLoop(): Promise<void> {
  return new Promise((resolve) => systemClock.soon(resolve))
}
