/** What a request finds in the row that an earlier request with its key has made. */
export type Earlier<Row> =
  /** The work of the same request has not ended, and continues with the row. */
  | { readonly kind: 'open'; readonly row: Row }
  /** The same request was carried out or declined: its row has the answer. */
  | { readonly kind: 'settled'; readonly row: Row }
  | { readonly kind: 'other_request' }

/**
 * The id of a row derives from the key. So a late retry, whose record is gone, finds the row of its
 * first attempt, and does not move the money again. `open` is the status of a row whose work has
 * not ended.
 */
export function compareWithRow<Row extends { readonly status: string }>(
  row: Row,
  request: Readonly<Partial<Row>>,
  open: Row['status'],
): Earlier<Row> {
  const names = Object.keys(request) as (keyof Row)[]
  if (names.some((name) => row[name] !== request[name])) return { kind: 'other_request' }
  return { kind: row.status === open ? 'open' : 'settled', row }
}
