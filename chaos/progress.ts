/** Shows that something happens: one line that is rewritten, or plain lines where nobody watches. */
export interface Progress {
  readonly say: (text: string) => void
  /** A line of its own, that stays. */
  readonly tell: (text: string) => void
  readonly close: () => void
}

/** On a terminal every second; in a file, so often would only be noise. */
const PLAIN_EVERY_MS = 5_000

export interface Terminal {
  readonly isTTY?: boolean
  readonly columns?: number
  write(text: string): unknown
}

export function progress(terminal: Terminal, nowMs: () => number): Progress {
  const isLive = terminal.isTTY === true
  let lastMs = -Infinity
  let isOpen = false
  const clear = () => {
    if (isOpen) terminal.write('\r\u001B[K')
    isOpen = false
  }
  return {
    say(text) {
      if (isLive) {
        // Longer than the line, it would scroll instead of being rewritten.
        terminal.write(`\r\u001B[K${text.slice(0, (terminal.columns ?? 80) - 1)}`)
        isOpen = true
        return
      }
      if (nowMs() - lastMs < PLAIN_EVERY_MS) return
      lastMs = nowMs()
      terminal.write(`${text}\n`)
    },
    tell(text) {
      clear()
      terminal.write(`${text}\n`)
    },
    close: clear,
  }
}
