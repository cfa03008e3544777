/** Reads one environment variable each. An error is one sentence that names the variable. */

/** The limits of a number, and its default. */
export interface NumberLimits {
  readonly fallback: number
  readonly min: number
  readonly max: number
}

export function readNumber(env: NodeJS.ProcessEnv, name: string, limits: NumberLimits): number {
  const given = env[name] || String(limits.fallback)
  const { min, max } = limits
  const value = Number(given)
  if (/^\d+$/.test(given) && value >= min && value <= max) return value
  throw new Error(
    `${name} must be a whole number from ${min} to ${max}, got ${JSON.stringify(given)}.`,
  )
}

/** An empty PORT is a mistake in a script: a random port would not be found. */
export function readPort(given = '3000'): number {
  if (/^\d{1,5}$/.test(given) && Number(given) <= 65_535) return Number(given)
  throw new Error(`PORT must be a number from 0 to 65535, got ${JSON.stringify(given)}.`)
}

/** The message does not contain the value, which may have a password. */
export function readUrl(
  env: NodeJS.ProcessEnv,
  name: string,
  protocols: readonly string[],
): string {
  const given = env[name] ?? ''
  if (given === '') return ''
  const protocol = URL.parse(given)?.protocol.slice(0, -1)
  if (protocol !== undefined && protocols.includes(protocol)) return given
  const known = protocols.map((one) => `${one}://…`).join(' or ')
  throw new Error(`${name} must be a URL like ${known}, or empty.`)
}

/** The parts of a list that is separated by commas. */
export function readList(env: NodeJS.ProcessEnv, name: string): string[] {
  return (env[name] ?? '').split(',').filter((text) => text !== '')
}
