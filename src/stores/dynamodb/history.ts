import { toView } from '../../core/record/decide.ts'
import type { HistoryQuery, RecordView } from '../../core/store/store.ts'
import type { FoundItem, Item } from './client.ts'
import {
  fromItem,
  HISTORY,
  HISTORY_END,
  historyStart,
  RECORD,
  recordKey,
  splitHistoryKey,
} from './items.ts'
import type { Calls } from './calls.ts'
import type { Results } from './results.ts'
import { BY_RECORD_ID } from './table-definition.ts'

interface FoundKey {
  readonly identity: string
  /** The sort key of the record, or of a copy in the history. */
  readonly item: string
}

/** Where the copies of a key or of a record are. */
interface Place {
  readonly identity: string
  /** The first and the last sort key. */
  readonly from: string
  readonly to: string
  /** The record of the key, if it has one now. */
  readonly current: FoundItem | undefined
}

/** Reads expired records and discarded results. They are in the table, under the same identity. */
export class History {
  readonly #calls: Calls
  readonly #results: Results

  constructor(calls: Calls, results: Results) {
    this.#calls = calls
    this.#results = results
  }

  async read({ ref, limit }: HistoryQuery): Promise<RecordView[]> {
    const { identity, recordId } = ref
    const place =
      identity === undefined ? await this.#ofRecord(recordId) : await this.#ofKey(identity)
    const views: RecordView[] = []
    if (place === undefined || limit <= 0) return views
    const copies = new CopyCheck(place.current)
    let last: FoundItem | undefined
    do {
      const page = await this.#page(place, limit, last)
      for (const item of page.Items ?? []) {
        // Another record of the key may have been created in the same millisecond.
        const isOther = recordId !== undefined && item['recordId']?.S !== recordId
        if (isOther || !copies.counts(item)) continue
        views.push(await this.#toView(item))
        if (views.length === limit) return views
      }
      last = page.LastEvaluatedKey
    } while (last !== undefined)
    return views
  }

  async #ofKey(identity: string): Promise<Place> {
    const current = await this.#calls.getItem(recordKey(identity))
    return { identity, from: HISTORY, to: HISTORY_END, current }
  }

  async #ofRecord(recordId: string): Promise<Place | undefined> {
    const keys = await findById(this.#calls, recordId)
    const [first] = keys
    if (first === undefined) return undefined
    const { identity } = first
    const current = await this.#calls.getItem(recordKey(identity))
    const from = startOf(recordId, keys, current)
    return from === undefined ? undefined : { identity, from, to: `${from}#${recordId}`, current }
  }

  /** Newest first. */
  #page({ identity, from, to }: Place, limit: number, last: FoundItem | undefined) {
    return this.#calls.query({
      KeyConditionExpression: '#identity = :identity AND #item BETWEEN :from AND :to',
      ExpressionAttributeNames: { '#identity': 'identity', '#item': 'item' },
      ExpressionAttributeValues: {
        ':identity': { S: identity },
        ':from': { S: from },
        ':to': { S: to },
      },
      ConsistentRead: true,
      ScanIndexForward: false,
      // One item more, because a copy of the current record does not count.
      Limit: limit + 1,
      ...(last === undefined ? {} : { ExclusiveStartKey: last as Item }),
    })
  }

  async #toView(item: FoundItem): Promise<RecordView> {
    const stored = fromItem(item)
    const result = await this.#results.load(stored)
    if (result === 'gone') throw new Error('parts of a result are missing from the history')
    return { ...toView(stored.record), result }
  }
}

/** Finds the identity of a record by its id. A new record is found with a short delay. */
export async function findIdentity(calls: Calls, recordId: string): Promise<string | undefined> {
  const [key] = await findById(calls, recordId)
  return key?.identity
}

/** Reads an index, which gets a new record a moment after the table. */
async function findById(calls: Calls, recordId: string): Promise<FoundKey[]> {
  // The service rejects an empty string as key.
  if (recordId === '') return []
  const { Items: items = [] } = await calls.query({
    IndexName: BY_RECORD_ID,
    KeyConditionExpression: '#recordId = :recordId',
    ExpressionAttributeNames: { '#recordId': 'recordId' },
    ExpressionAttributeValues: { ':recordId': { S: recordId } },
    // The record and a copy in the history.
    Limit: 2,
  })
  return items.flatMap(({ identity, item }) =>
    identity?.S === undefined || item?.S === undefined
      ? []
      : [{ identity: identity.S, item: item.S }],
  )
}

/** The start of the sort keys of all copies of a record: in each of them, or from the record. */
function startOf(
  recordId: string,
  keys: readonly FoundKey[],
  current: FoundItem | undefined,
): string | undefined {
  const copy = keys.find(({ item }) => item !== RECORD)
  if (copy !== undefined) return splitHistoryKey(copy.item).start
  if (current?.['recordId']?.S !== recordId) return undefined
  return historyStart(Number(current['createdAtMs']?.N))
}

/**
 * Decides which copies of a key are in its history. Ask about the newest copy first.
 *
 * A process may crash, or be overtaken, after it has written a copy and before it removes the
 * record or its result. Such a copy does not count: it is written again at the end.
 */
class CopyCheck {
  /** For each record, what follows its copies: the record in use, or the copy of its end. */
  readonly #later = new Map<string, FoundItem>()
  readonly #inUse: string | undefined

  constructor(current: FoundItem | undefined) {
    if (current === undefined || current['state']?.S === 'expired') return
    this.#inUse = current['recordId']?.S
    this.#note(current)
  }

  counts(item: FoundItem): boolean {
    const recordId = item['recordId']?.S ?? ''
    if (splitHistoryKey(item['item']?.S ?? '').ending === 'result') {
      // A discard gives the record a new version. With the same version it still has its result.
      return this.#later.get(recordId)?.['version']?.S !== item['version']?.S
    }
    if (recordId === this.#inUse) return false
    this.#note(item)
    return true
  }

  #note(item: FoundItem): void {
    this.#later.set(item['recordId']?.S ?? '', item)
  }
}
