/** A value that no record can hold. Nothing was sent. */
export class ValueFault extends Error {}

/**
 * Half of what a length of two bytes can say: the server puts an error code among the texts of a
 * claim, and the length of both together must not wrap there.
 */
const TEXT_BYTES_MAX = 32_767
const COUNT_MAX = 2 ** 32 - 1

/** Writes values one behind the other, as `struct.unpack` of the server reads them: `<BHI4d c0`. */
export class Packer {
  #bytes: Buffer
  #at = 0

  /** `bytes`: what it will probably take. It grows where that was too little. */
  constructor(bytes: number) {
    this.#bytes = Buffer.allocUnsafe(bytes)
  }

  /** What was written. The packer is not used after it: a client may keep the bytes. */
  finish(): Buffer {
    return this.#bytes.subarray(0, this.#at)
  }

  byte(value: number): void {
    this.#reserve(1)
    this.#bytes[this.#at++] = value
  }

  /** The place of a word in its list. */
  code(words: readonly (string | undefined)[], word: string | undefined): void {
    const code = words.indexOf(word)
    if (code === -1) throw new ValueFault(`"${word}" is none of ${words.slice(1).join(', ')}`)
    this.byte(code)
  }

  count(value: number): void {
    if (!Number.isInteger(value) || value < 0 || value > COUNT_MAX) {
      throw new ValueFault(`${value} is no count`)
    }
    this.#reserve(4)
    this.#at = this.#bytes.writeUInt32LE(value, this.#at)
  }

  number(value: number): void {
    if (!Number.isFinite(value)) throw new ValueFault(`${value} is no time span`)
    this.#reserve(8)
    this.#at = this.#bytes.writeDoubleLE(value, this.#at)
  }

  /** UTF-8 behind its length. Half a surrogate pair would become another text, and merge keys. */
  text(value: string): void {
    this.#reserve(2 + 3 * value.length)
    if (!value.isWellFormed()) throw new ValueFault('a text holds half a surrogate pair')
    const length = this.#bytes.write(value, this.#at + 2)
    if (length > TEXT_BYTES_MAX) throw tooLong('a text', length)
    this.#bytes.writeUInt16LE(length, this.#at)
    this.#at += 2 + length
  }

  /** What `write` writes, behind its length in bytes, which a text may have. */
  nested(write: () => void): void {
    this.#reserve(2)
    const start = this.#at
    this.#at += 2
    write()
    const length = this.#at - start - 2
    if (length > TEXT_BYTES_MAX) throw tooLong('what a claim says in texts', length)
    this.#bytes.writeUInt16LE(length, start)
  }

  /** Bytes behind their length, copied: the caller may reuse its buffer at once. */
  bytes(value: Uint8Array): void {
    if (!(value instanceof Uint8Array)) throw new ValueFault('a result must be bytes')
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

function tooLong(what: string, length: number): ValueFault {
  return new ValueFault(`${what} has ${length} bytes, and may have ${TEXT_BYTES_MAX}`)
}

/** Reads what `struct.pack` of the server has written. */
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

  /** A copy of the rest, so that a small result does not keep a large answer alive. */
  rest(): Uint8Array {
    return Uint8Array.prototype.slice.call(this.#bytes, this.#at)
  }
}
