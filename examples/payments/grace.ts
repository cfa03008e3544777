/**
 * The time for work in progress to end when the process stops. Longer than any request; twice the
 * value is shorter than the 30 s after which platforms send SIGKILL.
 */
export const GRACE_MS = 10_000
