/**
 * Every subject runs in a separate process: its heap, its compiled code and its event loop must not
 * affect the figures of another. The parent sends it messages.
 */

/** The servers that a program may use, and a private folder. */
export interface Places {
  readonly folder: string
  readonly postgres?: string
  readonly mariadb?: string
  readonly redis?: string
}

/** The result of the `open` export of a file in `programs/`. */
export interface Program {
  /** Sent to the parent when the program is ready. */
  readonly info?: unknown
  /** The calls that the parent may make, by name. */
  readonly calls: Readonly<Record<string, (args: never) => unknown>>
  readonly close: () => Promise<void>
}

export type ProgramMessage =
  | { readonly kind: 'ready'; readonly info: unknown }
  | { readonly kind: 'answer'; readonly id: number; readonly value: unknown }
  | { readonly kind: 'failed'; readonly id: number; readonly text: string }

export interface ProgramCall {
  readonly id: number
  readonly name: string
  readonly args: unknown
}

/** Duration and concurrency of a measuring call. */
export interface Load {
  readonly inFlight: number
  readonly ms: number
  /** Warm-up time, not counted: connections open, and code is compiled. */
  readonly warmMs: number
}
