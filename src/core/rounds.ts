/**
 * Answers a batch in its order. A call of the database sees a record once, so requests about the
 * same record go one after the other, in calls of their own: what the first one wrote is then what
 * the second one finds.
 */
export async function inRounds<Request, Outcome>(
  requests: readonly Request[],
  keyOf: (request: Request) => string,
  call: (round: readonly Request[]) => Promise<Outcome[]>,
): Promise<Outcome[]> {
  // Nearly always there are no two about the same.
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
