import type { RelayMessage } from '../relay-contract.ts'

/** A payload as a broker accepts it. */
export interface MessageBody {
  readonly content: Buffer
  readonly contentType: string | undefined
}

/** Bytes as they are, other values as JSON, and no bytes without a payload. */
export function toMessageBody({ payload }: Pick<RelayMessage, 'payload'>): MessageBody {
  if (payload === undefined) return { content: Buffer.alloc(0), contentType: undefined }
  if (payload instanceof Uint8Array) {
    const { buffer, byteOffset, byteLength } = payload
    const content = Buffer.from(buffer, byteOffset, byteLength)
    return { content, contentType: 'application/octet-stream' }
  }
  return { content: Buffer.from(JSON.stringify(payload)), contentType: 'application/json' }
}
