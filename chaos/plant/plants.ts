/** Bugs that can be planted into the service, to see whether a run finds them. */
export const PLANT_NAMES = ['no-fence', 'early-ack', 'lapse-reruns-effect', 'no-tenant'] as const

export type PlantName = (typeof PLANT_NAMES)[number]

export interface Edit {
  /** Below `dist`. */
  readonly file: string
  /** Must be there exactly once: a bug that no longer fits proves nothing. */
  readonly find: string
  readonly replace: string
}

export const PLANTS: Readonly<Record<PlantName, readonly Edit[]>> = {
  'no-fence': [],
  'early-ack': [],
  'lapse-reruns-effect': [],
  'no-tenant': [],
}
