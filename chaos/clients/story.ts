/**
 * A story is one key of one tenant with one request, and everything that its client got for it. The
 * seed decides what happens in it; the timing depends on the machine.
 */
import { seeded, type Random } from '../random.ts'
import type { Seen } from './seen.ts'

export const STORY_KINDS = ['payment', 'refund', 'order', 'transfer'] as const

export type StoryKind = (typeof STORY_KINDS)[number]

export interface Tenant {
  readonly name: string
  readonly token: string
}

export const TENANTS: readonly [Tenant, Tenant] = [
  { name: 'tenant-a', token: 'chaos-token-a' },
  { name: 'tenant-b', token: 'chaos-token-b' },
]

export type RequestBody = Readonly<Record<string, string | number>>

export interface Story {
  readonly number: number
  readonly tenant: string
  readonly key: string
  readonly kind: StoryKind
  readonly path: string
  readonly body: RequestBody
  /** Another request that is sent under the same key by mistake. */
  readonly altered: RequestBody
  /** The story of the other tenant with the same key. */
  readonly twin: number | undefined
  /** The provider declines the paying account. */
  readonly isDeclined: boolean
  /** The client sends the request once, disconnects, and comes back at the end. */
  readonly isLeft: boolean
  /** Many clients retry concurrently, while the key is in progress and after it is completed. */
  readonly isHot: boolean
  readonly seen: Seen[]
}

/** A payment that its client knows to be made, for a refund. */
export interface Paid {
  readonly tenant: string
  readonly paymentId: string
  readonly amountCents: number
}

/** The existing payments that a story may refer to. */
export interface World {
  readonly skus: readonly string[]
  /** Newest last. */
  readonly paid: readonly Paid[]
}

/** Every 40th story, so that even a short run has some. */
const HOT_EVERY = 40
/** Two, because a story with a twin takes two numbers. */
const HOT_SPAN = 2

const DECLINED_ACCOUNT = 'declined'
const CURRENCY = 'EUR'

/** One story, or two if the other tenant uses the same key. */
export function makeStories(seed: number, number: number, world: World): Story[] {
  const random = seeded(seed, `story ${number}`)
  const tenant = random.pick(TENANTS)
  const key = keyOf(random, seed, number)
  const draft = draftOf(random, number, tenant.name, world)
  const isHot = number % HOT_EVERY < HOT_SPAN
  const isLeft = !isHot && random.chance(0.12)
  const first = { number, tenant: tenant.name, key, ...draft, isLeft, isHot, seen: [] }
  const hasTwin = first.kind !== 'refund' && random.chance(0.25)
  if (!hasTwin) return [{ ...first, twin: undefined }]
  const other = TENANTS.find(({ name }) => name !== tenant.name)!
  // The same bytes, or a different request: either must get a separate answer.
  const own = random.chance(0.5) ? draft : { ...draft, ...requestOf(random, draft, other.name) }
  const next = { number: number + 1, isLeft: false, isHot, seen: [] }
  const twin = { tenant: other.name, key, ...own, ...next }
  return [
    { ...first, twin: twin.number },
    { ...twin, twin: first.number },
  ]
}

/** Keys as SDKs make them: bare, or with base64 characters. */
function keyOf(random: Random, seed: number, number: number): string {
  const tail = Array.from({ length: 4 }, () => random.between(0, 0xffff).toString(16)).join('')
  return random.chance(0.8) ? `chaos-${seed}-${number}-${tail}` : `${tail}/+${seed}.${number}==`
}

type Draft = Pick<Story, 'kind' | 'path' | 'body' | 'altered' | 'isDeclined'>

function draftOf(random: Random, number: number, tenant: string, world: World): Draft {
  const paid = world.paid.filter((payment) => payment.tenant === tenant).slice(-40)
  const dice = random.next()
  if (dice < 0.2 && paid.length > 0) return refundOf(random, random.pick(paid))
  if (dice < 0.4 && world.skus.length > 0) {
    const isDeclined = random.chance(0.15)
    const customerId = isDeclined ? DECLINED_ACCOUNT : `customer-${tenant}-${number}`
    const body = { customerId, sku: random.pick(world.skus), quantity: random.between(1, 3) }
    const altered = { ...body, quantity: body.quantity + 1 }
    return { kind: 'order', path: '/orders', body, altered, isDeclined }
  }
  const amountCents = random.between(100, 50_000)
  if (dice < 0.6) {
    const body = { toAccount: `account-${tenant}-${number}`, amountCents, currency: CURRENCY }
    const altered = { ...body, amountCents: amountCents + 1 }
    return { kind: 'transfer', path: '/transfers', body, altered, isDeclined: false }
  }
  const isDeclined = random.chance(0.15)
  const customerId = isDeclined ? DECLINED_ACCOUNT : `customer-${tenant}-${number}`
  const body = { customerId, amountCents, currency: CURRENCY }
  const altered = { ...body, amountCents: amountCents + 1 }
  return { kind: 'payment', path: '/payments', body, altered, isDeclined }
}

function refundOf(random: Random, { paymentId, amountCents }: Paid): Draft {
  const body = { amountCents: random.between(1, amountCents) }
  const altered = { amountCents: body.amountCents + 1 }
  const path = `/payments/${paymentId}/refunds`
  return { kind: 'refund', path, body, altered, isDeclined: false }
}

/** A request of the same kind for another tenant. */
function requestOf(
  random: Random,
  { kind, body, isDeclined }: Draft,
  tenant: string,
): Pick<Draft, 'body' | 'altered'> {
  const account = isDeclined ? DECLINED_ACCOUNT : `customer-${tenant}-${random.between(0, 1e6)}`
  switch (kind) {
    case 'order': {
      const quantity = random.between(1, 3)
      const own = { ...body, customerId: account, quantity }
      return { body: own, altered: { ...own, quantity: quantity + 1 } }
    }
    case 'transfer':
    case 'payment':
    case 'refund': {
      const amountCents = random.between(100, 50_000)
      const who = kind === 'transfer' ? { toAccount: account } : { customerId: account }
      const own = { ...body, ...who, amountCents }
      return { body: own, altered: { ...own, amountCents: amountCents + 1 } }
    }
  }
}

export function tokenOf(tenant: string): string {
  return TENANTS.find(({ name }) => name === tenant)!.token
}

/** The tenant that must not see a story. */
export function otherTenant(tenant: string): Tenant {
  return TENANTS.find(({ name }) => name !== tenant)!
}
