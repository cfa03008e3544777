import { NO_BYTES } from '../../../core/bytes.ts'
import { ValueFault } from '../../kit/value-fault.ts'

/**
 * Almost half of the largest length that fits into two bytes. The server adds an error code and an
 * id seed to the texts of a claim, and the length of all together must not overflow: also if an
 * older version, whose limit is 32,767, has written the texts.
 */
const TEXT_BYTES_MAX = 32_740
const COUNT_MAX = 2 ** 32 - 1

/** Writes values in the format that `struct.unpack` of the server reads: `<BHI4d c0`. */
export class Packer {
  #bytes: Buffer
  #at = 0

  /** `bytes`: the expected size. The buffer grows if that is too small. */
  constructor(bytes: number) {
    this.#bytes = Buffer.allocUnsafe(bytes)
  }

  /** Returns the written bytes. Do not use the packer afterwards: a client may keep the bytes. */
  finish(): Buffer {
    return this.#bytes.subarray(0, this.#at)
  }

  byte(value: number): void {
    this.#reserve(1)
    this.#bytes[this.#at++] = value
  }

  /** Writes the index of a word in its list. */
  code(words: readonly (string | undefined)[], word: string | undefined): void {
    const code = words.indexOf(word)
    if (code === -1) throw new ValueFault(`"${word}" is not one of ${words.slice(1).join(', ')}`)
    this.byte(code)
  }

  count(value: number): void {
    if (!Number.isInteger(value) || value < 0 || value > COUNT_MAX) {
      throw new ValueFault(`${value} is not a whole number from 0 to ${COUNT_MAX}`)
    }
    this.#reserve(4)
    this.#at = this.#bytes.writeUInt32LE(value, this.#at)
  }

  number(value: number): void {
    if (!Number.isFinite(value)) throw new ValueFault(`${value} is not a finite number`)
    this.#reserve(8)
    this.#at = this.#bytes.writeDoubleLE(value, this.#at)
  }

  /**
   * Writes the length, then the text as UTF-8, and then `more`. Half a surrogate pair would become
   * another character, so that two keys would become one.
   */
  text(value: string, more: Uint8Array = NO_BYTES): void {
    this.#reserve(2 + 3 * value.length + more.length)
    if (!value.isWellFormed()) throw new ValueFault('a text contains half a surrogate pair')
    const written = this.#bytes.write(value, this.#at + 2)
    this.#bytes.set(more, this.#at + 2 + written)
    const length = written + more.length
    if (length > TEXT_BYTES_MAX) throw tooLong('a text', length)
    this.#bytes.writeUInt16LE(length, this.#at)
    this.#at += 2 + length
  }

  /** Writes the length in bytes, at most that of a text, and then the values of `write`. */
  nested(write: () => void): void {
    this.#reserve(2)
    const start = this.#at
    this.#at += 2
    write()
    const length = this.#at - start - 2
    if (length > TEXT_BYTES_MAX) throw tooLong('the sum of all texts of a claim', length)
    this.#bytes.writeUInt16LE(length, start)
  }

  /** Writes the length and a copy of the bytes, so that the caller can reuse its buffer at once. */
  bytes(value: Uint8Array): void {
    if (!(value instanceof Uint8Array)) throw new ValueFault('a result is not a Uint8Array')
    this.#reserve(4 + value.byteLength)
    this.#at = this.#bytes.writeUInt32LE(value.byteLength, this.#at)
    this.#bytes.set(value, this.#at)
    this.#at += value.byteLength
  }

  #reserve(count: number): void {
    if (this.#at + count <= this.#bytes.length) return
    const larger = Buffer.allocUnsafe(2 * (this.#at + count))
    this.#bytes.copy(larger, 0, 0, this.#at)
    this.#bytes = larger
  }
}

function tooLong(subject: string, length: number): ValueFault {
  return new ValueFault(`${subject} has ${length} bytes; at most ${TEXT_BYTES_MAX} are allowed`)
}

/** Reads values in the format that `struct.pack` of the server writes. */
export class Unpacker {
  readonly #bytes: Buffer
  #at = 0

  constructor(bytes: Buffer) {
    this.#bytes = bytes
  }

  byte(): number {
    return this.#bytes.readUInt8(this.#at++)
  }

  count(): number {
    this.#at += 4
    return this.#bytes.readUInt32LE(this.#at - 4)
  }

  number(): number {
    this.#at += 8
    return this.#bytes.readDoubleLE(this.#at - 8)
  }

  length(): number {
    this.#at += 2
    return this.#bytes.readUInt16LE(this.#at - 2)
  }

  text(): string {
    const length = this.length()
    const start = this.#at
    this.#at += length
    return this.#bytes.toString('utf8', start, this.#at)
  }

  /** Returns a text that is not only UTF-8. The bytes are those of the answer, not a copy. */
  textBytes(): Buffer {
    const length = this.length()
    const start = this.#at
    this.#at += length
    return this.#bytes.subarray(start, this.#at)
  }

  /** Copies the rest, so that a small result does not keep a large answer in memory. */
  rest(): Uint8Array {
    return Uint8Array.prototype.slice.call(this.#bytes, this.#at)
  }
}
