/** Goes past what waits for later, where leaps would take too many statements. */
import type { Row } from './client.ts'
import { LEAPS_MAX, type RecordLane } from './record-turns.ts'
import type { PassQuery } from './turn-sql.ts'

/** Entries of the index that one statement reads, of all lanes together. */
const PASS_ROWS = 10_000

/** Brings the walks of these lanes forward. Whether one now stands before an entry that is due. */
export async function passLater(
  lanes: readonly RecordLane[],
  without: ReadonlySet<string>,
  ask: (query: PassQuery) => Promise<readonly Row[]>,
): Promise<boolean> {
  const open = lanes
    .flatMap(({ number, walk }) => {
      const rest = walk.rest
      return rest === undefined ? [] : [{ ...rest, number, walk }]
    })
    .slice(0, LEAPS_MAX)
  if (open.length === 0) return false
  const rows = Math.ceil(PASS_ROWS / open.length)
  const found = await ask({ rests: open, rows, without })
  for (const [n, count, last, due] of found) {
    const isEnd = Number(count) < rows
    open[Number(n)]?.walk.pass({ last: toKey(last), due: toKey(due), isEnd })
  }
  return found.some(([, , , due]) => due !== null)
}

const toKey = (column: unknown) => (typeof column === 'string' ? column : undefined)
