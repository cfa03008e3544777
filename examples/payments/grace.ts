/**
 * How long whatever is under way has to end when the process is told to stop. Longer than any
 * request takes; twice of it is shorter than the 30 s after which platforms send SIGKILL.
 */
export const GRACE_MS = 10_000
