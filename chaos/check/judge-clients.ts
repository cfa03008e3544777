/** Violations that clients can see: answers that differ, or that belong to another tenant. */
import {
  isAnswered,
  isFinal,
  isMismatch,
  showsRecord,
  toObject,
  type Answer,
  type SeenAnswer,
} from '../clients/seen.ts'
import type { Story } from '../clients/story.ts'
import type { Violation } from './facts.ts'

export function judgeClients(stories: readonly Story[]): Violation[] {
  return [...stories.flatMap((story) => judgeStory(story)), ...judgeSharedIds(stories)]
}

/** The answers that end a story: to its own request, or from its status route. */
export function finalsOf(story: Story): SeenAnswer[] {
  return story.seen
    .filter(isAnswered)
    .filter(({ asked, outcome }) => isOwn(asked) && isFinal(outcome))
}

/** The id of the resource that the answer names. */
export function idOf(story: Story, { body }: Answer): string | undefined {
  const id = toObject(body)?.[`${story.kind}Id`]
  return typeof id === 'string' ? id : undefined
}

function judgeStory(story: Story): Violation[] {
  const seen = story.seen.filter(isAnswered)
  return [
    ...judgeFinals(story),
    ...judgeStale(story),
    ...seen.filter(({ asked }) => isOwn(asked)).flatMap((one) => judgeRefusal(story, one)),
    ...seen.filter(({ asked }) => asked === 'altered').flatMap((one) => judgeAltered(story, one)),
    ...seen.filter(({ asked }) => asked === 'read').flatMap((one) => judgeRead(story, one)),
    ...seen.filter(({ asked }) => isForeign(asked)).flatMap((one) => judgeSpy(story, one)),
  ]
}

function isOwn(asked: SeenAnswer['asked']): boolean {
  return asked === 'request' || asked === 'status'
}

function isForeign(asked: SeenAnswer['asked']): boolean {
  return asked === 'foreign_read' || asked === 'foreign_refund'
}

/** Divergence: one key has two final answers. */
function judgeFinals(story: Story): Violation[] {
  const [first, ...others] = finalsOf(story).map(({ outcome }) => outcome)
  const other = others.find(({ status, body }) => status !== first!.status || body !== first!.body)
  if (first === undefined || other === undefined) return []
  return [
    {
      kind: 'divergence',
      story: story.number,
      detail: `one client got ${wordsOf(first)}, another ${wordsOf(other)}`,
    },
  ]
}

/** Divergence: a client that asks after the final answer gets an older one. */
function judgeStale(story: Story): Violation[] {
  const [first] = finalsOf(story).toSorted((one, other) => one.endedMs - other.endedMs)
  if (first === undefined) return []
  return story.seen
    .filter(isAnswered)
    .filter(({ asked, sentMs }) => asked === 'request' && sentMs > first.endedMs)
    .filter(({ outcome }) => !isFinal(outcome) && showsRecord(outcome))
    .map(({ outcome, node }) => ({
      kind: 'divergence',
      story: story.number,
      detail: `after the final ${wordsOf(first.outcome)}, ${node} answered ${wordsOf(outcome)}`,
    }))
}

/** The story's own request was refused as another one, for another tenant's key or for none. */
function judgeRefusal(story: Story, { outcome, node }: SeenAnswer): Violation[] {
  if (!isMismatch(outcome)) return []
  const hasTwin = story.twin !== undefined
  return [
    {
      kind: hasTwin ? 'leak' : 'divergence',
      story: story.number,
      detail: hasTwin
        ? `${node} took the key for the one of the other tenant: ${wordsOf(outcome)}`
        : `${node} did not recognise the request of the key: ${wordsOf(outcome)}`,
    },
  ]
}

/** The guard compares the request first: only a failing server answers otherwise. */
function judgeAltered(story: Story, { outcome, node }: SeenAnswer): Violation[] {
  if (isMismatch(outcome) || outcome.status >= 500 || outcome.status === 429) return []
  const detail = `${node} answered another request under the key with ${wordsOf(outcome)}`
  return [{ kind: 'divergence', story: story.number, detail }]
}

/** Lost: a client got a success, read the resource after that, and it was missing. */
function judgeRead(story: Story, read: SeenAnswer): Violation[] {
  const answeredMs = finalsOf(story)
    .filter(({ outcome }) => isSuccess(outcome))
    .reduce((earliest, { endedMs }) => Math.min(earliest, endedMs), Infinity)
  if (read.sentMs < answeredMs) return []
  const { status, body } = read.outcome
  if (status >= 500 || status === 429) return []
  const state = toObject(body)?.['status']
  if (status === 200 && typeof state === 'string' && DONE[story.kind].includes(state)) return []
  const detail = `got a success, and then ${read.node} answered ${wordsOf(read.outcome)}`
  return [{ kind: 'lost', story: story.number, detail }]
}

const DONE: Readonly<Record<Story['kind'], readonly string[]>> = {
  payment: ['succeeded', 'partially_refunded', 'refunded'],
  refund: ['succeeded'],
  order: ['confirmed'],
  transfer: ['paid'],
}

function judgeSpy(story: Story, { outcome, node }: SeenAnswer): Violation[] {
  if (outcome.status === 404 || outcome.status >= 500 || outcome.status === 429) return []
  const detail = `${node} showed it to the other tenant: ${wordsOf(outcome)}`
  return [{ kind: 'leak', story: story.number, detail }]
}

/** Leak or duplicate: two keys got the same resource. */
function judgeSharedIds(stories: readonly Story[]): Violation[] {
  const owners = new Map<string, Story>()
  const violations: Violation[] = []
  for (const story of stories) {
    const ids = new Set(finalsOf(story).map(({ outcome }) => idOf(story, outcome)))
    for (const id of ids) {
      const owner = id === undefined ? undefined : owners.get(`${story.kind} ${id}`)
      if (id !== undefined && owner === undefined) owners.set(`${story.kind} ${id}`, story)
      if (owner === undefined) continue
      const isForeign = owner.tenant !== story.tenant
      violations.push({
        kind: isForeign ? 'leak' : 'divergence',
        story: story.number,
        detail: `got ${story.kind} ${id}, which belongs to story ${owner.number}`,
      })
    }
  }
  return violations
}

export function isSuccess({ status }: Answer): boolean {
  return status >= 200 && status < 300
}

export function wordsOf({ status, body, replayed }: Answer): string {
  return `${status}${replayed ? ' (replayed)' : ''} ${body.slice(0, 300)}`
}
