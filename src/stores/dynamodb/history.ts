import { toView } from '../../core/decide.ts'
import type { HistoryQuery, RecordView } from '../../core/store.ts'
import type { FoundItem, Item } from './client.ts'
import { HISTORY, RECORD, recordKey, toKept } from './items.ts'
import type { RecordTable } from './record-table.ts'
import type { Results } from './results.ts'
import { BY_RECORD_ID } from './table-definition.ts'

interface FoundKey {
  readonly identity: string
  /** The sort key: of the record, or of its place in the history. */
  readonly item: string
}

/** Records that have expired, in the same table, under the identity they had. */
export class History {
  readonly #table: RecordTable
  readonly #results: Results

  constructor(table: RecordTable, results: Results) {
    this.#table = table
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
      const kept = toKept(item)
      const result = await this.#results.load(kept)
      if (result === 'gone') throw new Error('parts of a result are missing from the history')
      views.push({ ...toView(kept.record), result })
    }
    return views
  }

  /** The record itself sorts behind its predecessors, and so comes first. */
  async #ofKey(identity: string, limit: number): Promise<FoundItem[]> {
    const items: FoundItem[] = []
    let last: FoundItem | undefined
    while (items.length < limit) {
      const page = await this.#table.query({
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
    const keys = await findById(this.#table, recordId)
    const wanted: Item[] = keys
      .filter(({ item }) => item !== RECORD)
      .map(({ identity, item }) => ({ identity: { S: identity }, item: { S: item } }))
    const [first] = keys
    if (first !== undefined) wanted.unshift(recordKey(first.identity))
    const items = await Promise.all(wanted.map((key) => this.#table.getItem(key)))
    return items.filter((item) => item !== undefined)
  }
}

/** By an index, which learns of a new record a moment after the table. */
export async function findById(table: RecordTable, recordId: string): Promise<FoundKey[]> {
  // The service refuses to look for nothing.
  if (recordId === '') return []
  const { Items: items = [] } = await table.query({
    IndexName: BY_RECORD_ID,
    KeyConditionExpression: '#recordId = :recordId',
    ExpressionAttributeNames: { '#recordId': 'recordId' },
    ExpressionAttributeValues: { ':recordId': { S: recordId } },
    // A record, and its copy in the history.
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
 * A process died, or was overtaken, between keeping a record in the history and removing it: it is
 * still in use, and its copy is written again when it ends.
 */
function isInUse(past: FoundItem, current: FoundItem | undefined): boolean {
  if (current === undefined || current['state']?.S === 'expired') return false
  return current['recordId']?.S === past['recordId']?.S
}
