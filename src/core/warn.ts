const warned = new Set<string>()

/**
 * For the few things a developer must be told and no event listener may be there to hear. Where
 * the message varies, `about` says what counts as once.
 */
export function warnOnce(message: string, about: string = message): void {
  if (warned.has(about)) return
  warned.add(about)
  warn(message)
}

export function warn(message: string): void {
  process.emitWarning(message, 'OncekeyWarning')
}
