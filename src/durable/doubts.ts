/** Why an operation is `unknown`, as the `errorCode` of its record says. */

/** An outside effect was sent, and nobody could say what became of it. */
export const EFFECT_UNKNOWN = 'effect_unknown'

/** An outside effect has happened, and its result may not be on record. */
export const RESULT_NOT_RECORDED = 'result_not_recorded'

/** It has failed as often as it may: somebody has to look before it is tried again. */
export const ATTEMPTS_EXHAUSTED = 'attempts_exhausted'
