/** What a duration that was written as text would be as a number; empty where it is none. */
export function durationHint(where: string, value: unknown): string {
  if (!where.endsWith('Ms') || typeof value !== 'string') return ''
  const match = /^\s*(\d{1,9}(?:\.\d{1,3})?)\s*([a-z]*)\s*$/i.exec(value)
  const unit = UNITS.find(({ names }) => names.includes(match?.[2]?.toLowerCase() ?? '?'))
  if (match === null || unit === undefined) return ': give a number of milliseconds'
  const ms = Math.round(Number(match[1]) * unit.ms)
  const digits = String(ms).replaceAll(/\B(?=(\d{3})+$)/g, '_')
  return `: give a number of milliseconds, ${match[1]} ${unit.names[0]} is ${digits}`
}

const UNITS: readonly { readonly names: readonly string[]; readonly ms: number }[] = [
  { names: ['ms', '', 'msec', 'msecs', 'millisecond', 'milliseconds'], ms: 1 },
  { names: ['s', 'sec', 'secs', 'second', 'seconds'], ms: 1000 },
  { names: ['min', 'm', 'mins', 'minute', 'minutes'], ms: 60_000 },
  { names: ['h', 'hr', 'hrs', 'hour', 'hours'], ms: 3_600_000 },
  { names: ['d', 'day', 'days'], ms: 86_400_000 },
  { names: ['w', 'week', 'weeks'], ms: 604_800_000 },
]
