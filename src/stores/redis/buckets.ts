/**
 * The keys of one of 64 buckets. The identity of a record decides its bucket. All keys of a bucket
 * have the same hash tag, so a record and its indexes are in one slot of a Redis Cluster and change
 * in one script.
 *
 * The number of buckets, their tags and the choice of a bucket never change: a record would be lost
 * if the store looked for it in another bucket.
 */
export interface Bucket {
  /** A sorted set: record ids by the kind and the time of their next move. */
  readonly due: string
  /** A hash: the identity for each record id. */
  readonly ids: string
  /** Written by calls that wait for replicas: see `replication.ts`. */
  readonly mark: string
  /** Prefix of the key of a record. The identity follows. */
  readonly base: string
}

/** The slots of the 64 tags are evenly spaced, so that every node of a cluster gets its share. */
export const TAGS: readonly string[] = (
  'mm ry 9i e8 v1 qt ap ax tb kv dn df wo o6 gc xw 8g d6 lc 02 g3 pk on pz 99 zt ul m5 fm yy va ' +
  'iu si k0 ce 8y pd op x9 x1 jf ur zj b3 ik q2 yg fs bk z2 rg ms af an qj i3 c5 dp kh 0t xi xa ' +
  'he 44'
).split(' ')

export class Buckets {
  readonly all: readonly Bucket[]

  constructor(prefix: string) {
    this.all = TAGS.map((tag) => {
      const base = `${prefix}:{${tag}}:`
      return { due: `${base}due`, ids: `${base}ids`, mark: `${base}mark`, base }
    })
  }

  of(identity: string): Bucket {
    return this.all[this.numberOf(identity)]!
  }

  numberOf(identity: string): number {
    return Number.parseInt(identity.slice(0, 2), 16) % TAGS.length
  }
}
