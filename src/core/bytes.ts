/** The shared empty byte array, for an absent body, result or progress. Compare by length. */
export const NO_BYTES = new Uint8Array(0)
