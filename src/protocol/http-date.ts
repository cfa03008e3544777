/** An HTTP date in its preferred form (RFC 9110, IMF-fixdate): `Tue, 17 Nov 2026 08:00:00 GMT`. */
const IMF_FIXDATE = /^[A-Z][a-z]{2}, \d{2} [A-Z][a-z]{2} \d{4} \d{2}:\d{2}:\d{2} GMT$/

/** The time in epoch milliseconds; `undefined` if the value is not one date in this form. */
export function parseHttpDate(value: string | readonly string[] | undefined): number | undefined {
  if (typeof value !== 'string' || !IMF_FIXDATE.test(value)) return undefined
  const ms = Date.parse(value)
  // `Date.parse` accepts a wrong weekday, and moves 31 February into March.
  return !Number.isNaN(ms) && new Date(ms).toUTCString() === value ? ms : undefined
}
