/** One character is enough to be a key; what makes a good one is the client's business. */
export const KEY_LENGTH_MIN = 1

/** What Stripe allows, and with it every SDK seen. Long enough for a UUID with a prefix. */
export const KEY_LENGTH_MAX = 255

/**
 * The body is read whole before the handler runs, because all of it is hashed. One mebibyte holds
 * any command an API takes; uploads belong on a route of their own.
 */
export const REQUEST_BODY_BYTES_MAX = 1024 * 1024

/** A reply above this is recorded without its body: a key store is no file store. */
export const REPLY_BODY_BYTES_MAX = 1024 * 1024

/** `Retry-After: 0` invites a tight loop, so every wait is at least one second. */
export const RETRY_AFTER_SECONDS_MIN = 1

/** Most handlers end long before their lease does; asking again after 5 s costs one read. */
export const RETRY_AFTER_IN_PROGRESS_SECONDS_MAX = 5

/** An unknown outcome waits for a reconciler or a person; faster retries would learn nothing. */
export const RETRY_AFTER_UNKNOWN_SECONDS_MAX = 60

/** How long a store may be left alone before it is probed again is an option of the engine. */
export const RETRY_AFTER_STORE_SECONDS_MAX = 60

/**
 * Deeper JSON is compared byte by byte instead of by meaning. Real bodies stay below 20 levels;
 * the bound keeps the work per body linear and the memory small.
 */
export const JSON_DEPTH_MAX = 512
