/**
 * Whoever is measured runs in a process of its own: what one does to its heap, its compiled code
 * and its event loop must not be in the figures of another. The parent talks to it by messages.
 */

/** Where the servers are that a program may use, and a folder of its own. */
export interface Places {
  readonly folder: string
  readonly postgres?: string
  readonly mariadb?: string
  readonly redis?: string
}

/** What a file in `programs/` exports as `open`. */
export interface Program {
  /** Told to the parent when the program is ready. */
  readonly info?: unknown
  /** What the parent may call, by name. */
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

/** How long and how much of it: what every measuring call is given. */
export interface Load {
  readonly inFlight: number
  readonly ms: number
  /** Not counted: connections open, code is compiled. */
  readonly warmMs: number
}
