import { toView } from '../../core/record/decide.ts'
import type {
  HistoryQuery,
  ListQuery,
  ReapReport,
  ReapRequest,
  RecordView,
  SweptRecord,
} from '../../core/store/store.ts'
import type { Calls } from './calls.ts'
import { toRecord, toSwept } from './columns.ts'
import type { Value } from './driver/driver.ts'
import { bytesValue, hexValue, isUuid } from './driver/values.ts'
import { LIST, LIST_HISTORY, REAP, SWEEP } from './sql.ts'

type Signal = AbortSignal | undefined

/** Sweeps lapsed leases, reaps expired records, and lists records and their history. */
export class Upkeep {
  readonly #calls: Calls
  readonly #hasHistory: boolean

  constructor(calls: Calls, hasHistory: boolean) {
    this.#calls = calls
    this.#hasHistory = hasHistory
  }

  async sweep(limit: number, signal: Signal): Promise<SweptRecord[]> {
    const values = () => [this.#calls.nowMs, limit]
    return (await this.#calls.send('sweep', SWEEP, values, signal)).map(toSwept)
  }

  async reap(request: ReapRequest, signal: Signal): Promise<ReapReport> {
    const values = () => reapValues(this.#calls.nowMs, this.#hasHistory, request)
    const [row] = await this.#calls.send('reap', REAP, values, signal)
    const [removed, expired, abandoned] = row as readonly [number, number, number]
    return { removed, expired, abandoned }
  }

  async list({ state, limit }: ListQuery, signal: Signal): Promise<RecordView[]> {
    const rows = await this.#calls.send('list', LIST, () => [state, limit], signal)
    return rows.map((row) => toView(toRecord(row)))
  }

  async listHistory(query: HistoryQuery, signal: Signal): Promise<RecordView[]> {
    const values = () => historyValues(query)
    const rows = await this.#calls.send('read the history', LIST_HISTORY, values, signal)
    return rows.map((row) => toView(toRecord(row)))
  }
}

function reapValues(
  nowMs: number | null,
  history: boolean,
  { limit, abandoned }: ReapRequest,
): Value[] {
  const { result, retentionMs } = abandoned ?? {}
  return [nowMs, limit, `${history}`, bytesValue(result), retentionMs ?? null]
}

function historyValues({ ref, limit }: HistoryQuery): Value[] {
  const { identity, recordId } = ref
  const hex = identity === undefined ? null : hexValue(identity)
  return [hex, isUuid(recordId) ? recordId : null, limit]
}
