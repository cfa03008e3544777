/**
 * Where a record lives: in one of 64 buckets, by its identity. All keys of a bucket carry the same
 * hash tag, so a record and its indexes are in one slot of a Redis Cluster and move in one script.
 *
 * The number of buckets, their tags and the way to them never change: a record that is looked for
 * in another bucket is a record that is lost.
 */
export interface Bucket {
  /** A sorted set: record ids by what is next for them and when. */
  readonly due: string
  /** A hash: the identity of every record id. */
  readonly ids: string
  /** Written where a call must have written something: see `replication.ts`. */
  readonly mark: string
  /** What the key of a record begins with; its identity follows. */
  readonly base: string
}

/** Chosen so that the slots of the 64 tags lie evenly apart: every node gets its share. */
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
