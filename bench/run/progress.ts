/** One line that is rewritten on a terminal; elsewhere a line now and then, to keep logs short. */

const LOG_EVERY_MS = 5_000

export class Progress {
  readonly #isTerminal = process.stderr.isTTY
  #loggedMs = -Infinity

  say(text: string): void {
    if (this.#isTerminal) {
      const shown = text.slice(0, (process.stderr.columns ?? 80) - 1)
      process.stderr.write(`\r\u001B[K${shown}`)
      return
    }
    const nowMs = performance.now()
    if (nowMs - this.#loggedMs < LOG_EVERY_MS) return
    this.#loggedMs = nowMs
    process.stderr.write(`${text}\n`)
  }

  end(): void {
    if (this.#isTerminal) process.stderr.write('\r\u001B[K')
  }
}
