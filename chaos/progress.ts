/** Progress output: one line that is rewritten on a terminal, or plain lines in a file. */
export interface Progress {
  readonly say: (text: string) => void
  /** Prints a line that stays. */
  readonly tell: (text: string) => void
  readonly close: () => void
}

/** Interval in a file; on a terminal the line is rewritten every second. */
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
        // A longer text would wrap and scroll instead of being rewritten.
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
