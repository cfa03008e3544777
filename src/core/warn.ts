const warned = new Set<string>()

/**
 * Warns about problems that a developer must see even without an event listener. Warns once
 * in a process for each `id`: pass one if the message varies.
 */
export function warnOnce(message: string, id: string = message): void {
  if (warned.has(id)) return
  warned.add(id)
  warn(message)
}

export function warn(message: string): void {
  process.emitWarning(message, 'OncekeyWarning')
}
