/**
 * The outside services: a provider that charges and a post office that delivers receipts. Both
 * write to a file before they answer, so their ledgers survive a crash of the calling process.
 */
import { appendFileSync, existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

export interface Charge {
  readonly id: string
  /** The downstream key of the request. */
  readonly key: string
  readonly amount: number
}

/** Called after each permanent outside effect. */
export type OnOutside = (what: 'charged' | 'delivered') => void

/** The delay of a request or an answer. */
const onItsWay = () => new Promise<void>((resolve) => setImmediate(resolve))

export class Acquirer {
  readonly #file: string
  readonly #dedups: boolean
  readonly #onOutside: OnOutside

  /** `dedups`: recognises a used key and does not charge again. */
  constructor(folder: string, { dedups }: { readonly dedups: boolean }, onOutside?: OnOutside) {
    this.#file = join(folder, 'charges.log')
    this.#dedups = dedups
    this.#onOutside = onOutside ?? (() => undefined)
  }

  async charge(key: string, amount: number): Promise<Charge> {
    await onItsWay()
    const charge = this.#chargeNow(key, amount)
    await onItsWay()
    return charge
  }

  #chargeNow(key: string, amount: number): Charge {
    const known = this.#dedups ? this.charges.find((one) => one.key === key) : undefined
    if (known !== undefined) return known
    const charge = { id: `ch_${this.charges.length + 1}`, key, amount }
    appendFileSync(this.#file, `${JSON.stringify(charge)}\n`)
    this.#onOutside('charged')
    return charge
  }

  async find(key: string): Promise<Charge | undefined> {
    await onItsWay()
    const charge = this.charges.find((one) => one.key === key)
    await onItsWay()
    return charge
  }

  get charges(): Charge[] {
    return linesOf(this.#file).map((line) => JSON.parse(line) as Charge)
  }
}

/** Delivers everything that it gets: the receiver has to recognise a repeat. */
export class PostOffice {
  readonly #file: string
  readonly #onOutside: OnOutside

  constructor(folder: string, onOutside?: OnOutside) {
    this.#file = join(folder, 'receipts.log')
    this.#onOutside = onOutside ?? (() => undefined)
  }

  async deliver(key: string, receipt: unknown): Promise<void> {
    await onItsWay()
    appendFileSync(this.#file, `${JSON.stringify({ key, receipt })}\n`)
    this.#onOutside('delivered')
    await onItsWay()
  }

  get deliveries(): { readonly key: string; readonly receipt: unknown }[] {
    return linesOf(this.#file).map((line) => JSON.parse(line) as { key: string; receipt: unknown })
  }
}

function linesOf(file: string): string[] {
  if (!existsSync(file)) return []
  return readFileSync(file, 'utf8').split('\n').slice(0, -1)
}
