/** The names of the bad neighbours, in the service and in its database. */

/** Sends far more work than the workers can do. */
export const FLOOD = { name: 'tenant-flood', token: 'chaos-flood' } as const

/** Uses the provider that never answers, and the topic whose handler never ends. */
export const HANGING = { name: 'tenant-hanging', token: 'chaos-hanging' } as const

export const HANGING_OPERATION = 'neighbours.hang'
export const TELLING_OPERATION = 'neighbours.tell'
export const ENDLESS_TOPIC = 'neighbours.endless'

export const HANGING_PATH = '/neighbours/hang'
export const TELLING_PATH = '/neighbours/tell'

/** Payouts to accounts with this prefix are answered late. */
export const SLOW_ACCOUNT = 'slow-'

export const NEIGHBOURS = [FLOOD, HANGING]
