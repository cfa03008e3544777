/** A value that the database cannot store exactly. Thrown before anything is sent. */
export class ValueFault extends Error {}
