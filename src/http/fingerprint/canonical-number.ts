/**
 * A literal of at most this many characters without an exponent has at most 15 significant digits
 * and a moderate magnitude, so a double prints back the same value.
 */
const EXACT_LENGTH_MAX = 15

/** An exponent with more digits could not be added to exactly. */
const EXPONENT_DIGITS_MAX = 15

const PLAIN_INTEGER = /^(?:-?[1-9]\d*|0)$/
const EXPONENT_MARK = /[eE]/

/** The value `digits` × 10^`exponent`. The digits neither start nor end with a zero. */
interface Decimal {
  readonly sign: string
  readonly digits: string
  readonly exponent: number
}

/**
 * Returns one spelling for all JSON literals of the same value, and never the same spelling for two
 * values.
 *
 * If the parsed double prints as the same value, that print is used (RFC 8785). Otherwise all
 * digits are kept: `9007199254740993` is not `9007199254740992` and `1e400` is not `2e400`,
 * although a parser makes no difference. Takes time linear in the length of the literal, for any
 * exponent.
 */
export function canonicalNumber(literal: string): string {
  if (literal.length <= EXACT_LENGTH_MAX && !EXPONENT_MARK.test(literal)) {
    return PLAIN_INTEGER.test(literal) ? literal : String(Number(literal))
  }
  const exact = toDecimal(literal)
  // Every parser reads such a literal as infinity or zero, so only its text is unambiguous.
  if (exact === undefined) return literal.toLowerCase()
  if (exact.digits === '') return '0'
  const double = Number(literal)
  if (Number.isFinite(double) && double !== 0) {
    const printed = String(double)
    if (isSame(exact, toDecimal(printed))) return printed
  }
  const exponent = exact.exponent === 0 ? '' : `e${exact.exponent}`
  return `${exact.sign}${exact.digits}${exponent}`
}

function isSame(one: Decimal, other: Decimal | undefined): boolean {
  return one.digits === other?.digits && one.exponent === other.exponent
}

/** Uses loops, because `/0+$/` takes quadratic time on a hostile literal. */
function toDecimal(literal: string): Decimal | undefined {
  const mark = literal.search(EXPONENT_MARK)
  const exponentText = mark < 0 ? '' : literal.slice(mark + 1)
  const writtenExponent = readExponent(exponentText)
  const sign = literal.startsWith('-') ? '-' : ''
  const mantissa = literal.slice(sign.length, mark < 0 ? undefined : mark)
  const point = mantissa.indexOf('.')
  const fraction = point < 0 ? '' : mantissa.slice(point + 1)
  const all = point < 0 ? mantissa : mantissa.slice(0, point) + fraction
  let start = 0
  let end = all.length
  while (start < end && all.charCodeAt(start) === 0x30) start += 1
  while (end > start && all.charCodeAt(end - 1) === 0x30) end -= 1
  if (start === end) return { sign: '', digits: '', exponent: 0 }
  if (writtenExponent === undefined) return undefined
  const exponent = writtenExponent - fraction.length + (all.length - end)
  return { sign, digits: all.slice(start, end), exponent }
}

/** Returns `undefined` if the exponent is too long to calculate with. */
function readExponent(text: string): number | undefined {
  let start = text.startsWith('-') || text.startsWith('+') ? 1 : 0
  while (start < text.length && text.charCodeAt(start) === 0x30) start += 1
  if (text.length - start > EXPONENT_DIGITS_MAX) return undefined
  const size = Number(text.slice(start))
  return text.startsWith('-') ? -size : size
}
