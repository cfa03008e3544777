/**
 * Answers a batch in its order. One call to the database may name each record only once, so
 * requests for the same record are sent in successive calls: each finds what the request before it
 * has written.
 */
export async function inRounds<Request, Outcome>(
  requests: readonly Request[],
  keyOf: (request: Request) => string,
  call: (round: readonly Request[]) => Promise<Outcome[]>,
): Promise<Outcome[]> {
  // The usual case: no two requests name the same record.
  if (new Set(requests.map(keyOf)).size === requests.length) return call(requests)
  const outcomes = Array.from<Outcome>({ length: requests.length })
  let left = [...requests.keys()]
  while (left.length > 0) {
    const seen = new Set<string>()
    const later: number[] = []
    const now = left.filter((index) => {
      const key = keyOf(requests[index]!)
      if (seen.has(key)) later.push(index)
      else seen.add(key)
      return later.at(-1) !== index
    })
    const answers = await call(now.map((index) => requests[index]!))
    for (const [n, index] of now.entries()) outcomes[index] = answers[n]!
    left = later
  }
  return outcomes
}
