import { toView } from '../../core/record/decide.ts'
import type { HistoryQuery, RecordView } from '../../core/store/store.ts'
import type { FoundItem, Item } from './client.ts'
import { HISTORY, RECORD, recordKey, fromItem } from './items.ts'
import type { Calls } from './calls.ts'
import type { Results } from './results.ts'
import { BY_RECORD_ID } from './table-definition.ts'

interface FoundKey {
  readonly identity: string
  /** The sort key of the record, or of its copy in the history. */
  readonly item: string
}

/** Reads expired records. They are in the same table, under the same identity. */
export class History {
  readonly #calls: Calls
  readonly #results: Results

  constructor(calls: Calls, results: Results) {
    this.#calls = calls
    this.#results = results
  }

  async read({ ref, limit }: HistoryQuery): Promise<RecordView[]> {
    const items =
      ref.identity === undefined
        ? await this.#ofRecord(ref.recordId)
        : await this.#ofKey(ref.identity, limit + 1)
    const current = items.find(isRecord)
    const past = items.filter((item) => !isRecord(item) && !isInUse(item, current))
    const views: RecordView[] = []
    for (const item of past.slice(0, limit)) {
      const stored = fromItem(item)
      const result = await this.#results.load(stored)
      if (result === 'gone') throw new Error('parts of a result are missing from the history')
      views.push({ ...toView(stored.record), result })
    }
    return views
  }

  /** Newest first. The current record sorts after all history items, so it is the first. */
  async #ofKey(identity: string, limit: number): Promise<FoundItem[]> {
    const items: FoundItem[] = []
    let last: FoundItem | undefined
    while (items.length < limit) {
      const page = await this.#calls.query({
        KeyConditionExpression: '#identity = :identity AND #item BETWEEN :from AND :to',
        ExpressionAttributeNames: { '#identity': 'identity', '#item': 'item' },
        ExpressionAttributeValues: {
          ':identity': { S: identity },
          ':from': { S: HISTORY },
          ':to': { S: RECORD },
        },
        ConsistentRead: true,
        ScanIndexForward: false,
        Limit: limit - items.length,
        ...(last === undefined ? {} : { ExclusiveStartKey: last as Item }),
      })
      items.push(...(page.Items ?? []))
      last = page.LastEvaluatedKey
      if (last === undefined) break
    }
    return items
  }

  async #ofRecord(recordId: string): Promise<FoundItem[]> {
    const keys = await findById(this.#calls, recordId)
    const wanted: Item[] = keys
      .filter(({ item }) => item !== RECORD)
      .map(({ identity, item }) => ({ identity: { S: identity }, item: { S: item } }))
    const [first] = keys
    if (first !== undefined) wanted.unshift(recordKey(first.identity))
    const items = await Promise.all(wanted.map((key) => this.#calls.getItem(key)))
    return items.filter((item) => item !== undefined)
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
    // The record and its copy in the history.
    Limit: 2,
  })
  return items.flatMap(({ identity, item }) =>
    identity?.S === undefined || item?.S === undefined
      ? []
      : [{ identity: identity.S, item: item.S }],
  )
}

function isRecord(item: FoundItem): boolean {
  return item['item']?.S === RECORD
}

/**
 * Whether the record of this copy is still in use. A process may crash, or be overtaken, after it
 * has written the copy and before it removes the record. The copy is written again at the end.
 */
function isInUse(past: FoundItem, current: FoundItem | undefined): boolean {
  if (current === undefined || current['state']?.S === 'expired') return false
  return current['recordId']?.S === past['recordId']?.S
}
