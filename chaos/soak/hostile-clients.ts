/** Hostile clients: malformed requests, slow requests, and requests without reading the answer. */
import { connect } from 'node:net'
import type { Dice } from './dice.ts'
import { goodDraft, toBytes } from './draft.ts'
import { hostileRequest } from './hostile-requests.ts'
import { faultsOf } from './judge-answer.ts'
import { exchangeRaw } from './raw-exchange.ts'

export interface HostileClients {
  readonly requests: () => number
  /** The first wrong answers. */
  readonly faults: readonly string[]
  readonly stop: () => Promise<void>
}

const AT_ONCE = 10
const SLOW_AT_ONCE = 20
const FAULTS_MAX = 20
const DROP_MS = 200
const LEAVE_MS_MAX = 30
/** Pause between two requests of a client. Node accepts one new connection per event loop turn. */
const PAUSE_MS_MAX = 100
/** A connection may wait long until it is accepted: that alone is not a fault of the service. */
const HOLD_MS = 30_000
/** A limited number of distinct keys, so that they collide and the stored rows are bounded. */
const KEYS = 500

export function startHostileClients(port: number, dice: Dice): HostileClients {
  const faults: string[] = []
  let requests = 0
  const stopped = new AbortController()
  const key = () => `hostile-client-${dice.below(KEYS)}`
  const sendRubbish = async () => {
    while (!stopped.signal.aborted) {
      requests++
      const { kind, bytes, isHead, isCut } = hostileRequest(dice, key())
      const silence = isCut ? { silenceMs: 5 } : {}
      const request = { port, pieces: [bytes], isHead, holdMs: HOLD_MS, ...silence }
      const answer = await exchangeRaw(request)
      for (const fault of faultsOf(answer)) {
        if (faults.length < FAULTS_MAX) faults.push(`${kind}: ${fault}`)
      }
      await new Promise((resolve) => setTimeout(resolve, dice.below(PAUSE_MS_MAX)))
    }
  }
  const sendDrops = async () => {
    while (!stopped.signal.aborted) {
      requests++
      const bytes = toBytes(goodDraft(dice, key()))
      const some = Array.from(bytes.subarray(0, 20), (byte) => Buffer.of(byte))
      await exchangeRaw({ port, pieces: some, pauseMs: DROP_MS, silenceMs: 1_000 })
    }
  }
  const sendAndLeave = async () => {
    while (!stopped.signal.aborted) {
      requests++
      await leave(port, toBytes(goodDraft(dice, key())), dice.below(LEAVE_MS_MAX))
    }
  }
  const running = Promise.all([
    ...Array.from({ length: AT_ONCE }, sendRubbish),
    ...Array.from({ length: SLOW_AT_ONCE }, sendDrops),
    sendAndLeave(),
    sendAndLeave(),
  ])
  return {
    requests: () => requests,
    faults,
    stop: async () => {
      stopped.abort()
      await running
    },
  }
}

/** Sends a whole request and disconnects before its answer. */
function leave(port: number, bytes: Buffer, afterMs: number): Promise<void> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1')
    socket.once('error', () => resolve())
    socket.once('close', () => resolve())
    socket.once('connect', () => {
      socket.write(bytes)
      setTimeout(() => socket.resetAndDestroy(), afterMs)
    })
  })
}
