const warned = new Set<string>()

/** For the few things a developer must be told and no event listener may be there to hear. */
export function warnOnce(message: string): void {
  if (warned.has(message)) return
  warned.add(message)
  process.emitWarning(message, 'OncekeyWarning')
}
