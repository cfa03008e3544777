/** One character is enough: the client is responsible for the quality of its keys. */
export const KEY_LENGTH_MIN = 1

/** The limit of Stripe, and enough for every known SDK: a UUID with a prefix fits. */
export const KEY_LENGTH_MAX = 255

/**
 * The whole body is read before the handler runs, because all of it is hashed. One mebibyte is
 * enough for any command of an API; uploads belong on a separate route.
 */
export const REQUEST_BODY_BYTES_MAX = 1024 * 1024

/** A larger reply is recorded without its body: a key store is not a file store. */
export const REPLY_BODY_BYTES_MAX = 1024 * 1024

/** `Retry-After: 0` would cause a tight loop, so every wait is at least one second. */
export const RETRY_AFTER_SECONDS_MIN = 1

/** Most handlers end long before their lease does, and a retry after 5 s costs one read. */
export const RETRY_AFTER_IN_PROGRESS_SECONDS_MAX = 5

/** An unknown outcome waits for a reconciler or an operator, so faster retries gain nothing. */
export const RETRY_AFTER_UNKNOWN_SECONDS_MAX = 60

/** Limits the wait for the next probe of a failing store, whose pause is an engine option. */
export const RETRY_AFTER_STORE_SECONDS_MAX = 60

/** A window of a limiter may last a day; a client is not asked to wait longer. */
export const RETRY_AFTER_LIMIT_SECONDS_MAX = 86_400

/**
 * JSON with more levels is compared byte by byte instead of by meaning. Real bodies stay below 20
 * levels; the limit keeps the work per body linear and the memory small.
 */
export const JSON_DEPTH_MAX = 512
