/** What a server is set up to keep, in plain words. */
import type { Driver } from './client.ts'
import { isNotAllowed } from './failures.ts'

export type RedisFindingKind =
  /** It throws records away when memory runs out: claims are refused, unless `allowEviction`. */
  | 'evicts'
  /** It will throw records away once `maxmemory` is set. */
  | 'may_evict'
  /** A restart forgets everything, or what is newer than the last snapshot. */
  | 'not_persistent'
  /** A power cut forgets the last second. */
  | 'persists_late'
  /** A failover forgets what the replica does not have yet. */
  | 'replicates_late'
  /** It is older than 6.2: claims are refused. */
  | 'too_old'
  /** It did not say how it is set up. */
  | 'unchecked'

export interface RedisFinding {
  readonly kind: RedisFindingKind
  /** What is not guaranteed, and what to set. */
  readonly message: string
}

export interface RedisCheck {
  /** No finding is one that claims are refused for. */
  readonly usable: boolean
  /** Empty where there is nothing to say. */
  readonly findings: readonly RedisFinding[]
}

export interface CheckContext {
  readonly allowEviction: boolean
  readonly waitsForReplicas: boolean
  /** `waitReplicas` does not work there. */
  readonly isCluster: boolean
}

/** The settings of one master, as far as it tells them. */
interface Settings {
  readonly info: ReadonlyMap<string, string>
  /** By CONFIG, which managed servers forbid. */
  readonly save: string | undefined
  readonly appendfsync: string | undefined
}

export async function checkServer(
  driver: Driver,
  context: CheckContext,
  signal?: AbortSignal,
): Promise<RedisCheck> {
  const masters = await settingsOf(driver, signal)
  const findings = new Map<string, RedisFinding>()
  for (const master of masters) {
    for (const finding of findingsOf(master, context)) findings.set(finding.kind, finding)
  }
  return judge([...findings.values()], context)
}

/** Whether claims may be sent to a server, by its `INFO` alone. Warnings take more than that. */
export function judgeBucket(info: string, context: CheckContext): RedisCheck {
  const settings = { info: toInfo(info), save: undefined, appendfsync: undefined }
  const { usable, findings } = judge(findingsOf(settings, context), context)
  return { usable, findings: usable ? [] : findings }
}

function judge(findings: readonly RedisFinding[], { allowEviction }: CheckContext): RedisCheck {
  const refused = ['too_old', ...(allowEviction ? [] : ['evicts'])]
  return { usable: !findings.some(({ kind }) => refused.includes(kind)), findings }
}

async function settingsOf(driver: Driver, signal?: AbortSignal): Promise<Settings[]> {
  const infos = await unlessForbidden(driver.askMasters(['INFO'], signal))
  if (infos === undefined) return [{ info: new Map(), save: undefined, appendfsync: undefined }]
  const ask = (name: string) => unlessForbidden(driver.askMasters(['CONFIG', 'GET', name], signal))
  const [saves, appendfsyncs] = await Promise.all([ask('save'), ask('appendfsync')])
  // Masters answer in no particular order: a setting counts for all only if all have it.
  const save = shared(saves)
  const appendfsync = shared(appendfsyncs)
  return infos.map((info) => ({ info: toInfo(text(info)), save, appendfsync }))
}

function findingsOf({ info, save, appendfsync }: Settings, context: CheckContext): RedisFinding[] {
  const version = info.get('redis_version')
  if (version === undefined) return [UNCHECKED]
  const findings: RedisFinding[] = []
  if (isOld(version)) findings.push(tooOld(version))

  const policy = info.get('maxmemory_policy') ?? 'noeviction'
  if (policy !== 'noeviction') {
    findings.push(Number(info.get('maxmemory') ?? 0) > 0 ? evicts(policy) : mayEvict(policy))
  }
  if (info.get('aof_enabled') !== '1') findings.push(save === '' ? NOTHING_KEPT : ONLY_SNAPSHOTS)
  else if (appendfsync !== 'always') findings.push(persistsLate(appendfsync))

  const replicas = Number(info.get('connected_slaves') ?? 0)
  if (replicas > 0 && !context.waitsForReplicas) {
    findings.push(context.isCluster ? clusterReplicatesLate(info) : REPLICATES_LATE)
  }
  return findings
}

const UNCHECKED: RedisFinding = {
  kind: 'unchecked',
  message:
    'Redis did not tell how it is set up (INFO is not allowed): make sure that maxmemory-policy ' +
    'is noeviction and appendonly is yes, or keys may be forgotten and their work run again',
}

const NOTHING_KEPT: RedisFinding = {
  kind: 'not_persistent',
  message:
    'Redis keeps nothing on disk (appendonly no, no save points): when it restarts, every key is ' +
    'forgotten, and a retry runs its work again. Set appendonly yes',
}

const ONLY_SNAPSHOTS: RedisFinding = {
  kind: 'not_persistent',
  message:
    'Redis keeps snapshots at the most (appendonly no): when it restarts, the keys since the ' +
    'last snapshot are forgotten, and a retry runs their work again. Set appendonly yes',
}

const REPLICATES_LATE: RedisFinding = {
  kind: 'replicates_late',
  message:
    'Redis has replicas and nobody waits for them: after a failover the last keys may be ' +
    'forgotten, and a retry runs their work again. Set waitReplicas',
}

/** The server tells of its good replicas only where it needs some for a write. */
function clusterReplicatesLate(info: ReadonlyMap<string, string>): RedisFinding {
  const isBounded = info.has('min_slaves_good_slaves')
  return {
    kind: 'replicates_late',
    message:
      'Redis Cluster acknowledges a write before its replicas have it: after a failover the last ' +
      'keys may be forgotten, and a retry runs their work again. ' +
      (isBounded
        ? 'min-replicas-to-write bounds how many'
        : 'Set min-replicas-to-write 1 and a low min-replicas-max-lag on every node: a master ' +
          'without its replicas then takes no writes, which bounds how many'),
  }
}

function persistsLate(appendfsync: string | undefined): RedisFinding {
  return {
    kind: 'persists_late',
    message:
      `Redis writes to disk after it has answered (appendfsync ${appendfsync ?? 'unknown'}): in ` +
      'a power cut the keys of the last second or more may be forgotten, and a retry runs their ' +
      'work again. Set appendfsync always',
  }
}

function evicts(policy: string): RedisFinding {
  return {
    kind: 'evicts',
    message:
      `Redis evicts records when memory runs out (maxmemory-policy ${policy}): their keys are ` +
      'forgotten, and a retry runs their work again. Set maxmemory-policy noeviction, or accept ' +
      'it with allowEviction: true',
  }
}

function mayEvict(policy: string): RedisFinding {
  return {
    kind: 'may_evict',
    message:
      `Redis would evict records if it had a maxmemory (maxmemory-policy ${policy}). ` +
      'Set maxmemory-policy noeviction before somebody sets one',
  }
}

function tooOld(version: string): RedisFinding {
  return { kind: 'too_old', message: `Redis ${version} is too old: 6.2 or newer is needed` }
}

function isOld(version: string): boolean {
  const [major = 0, minor = 0] = version.split('.').map(Number)
  return major < 6 || (major === 6 && minor < 2)
}

async function unlessForbidden(answers: Promise<unknown[]>): Promise<unknown[] | undefined> {
  try {
    return await answers
  } catch (error) {
    if (isNotAllowed(error)) return undefined
    throw error
  }
}

/** The value that every master gives; `undefined` where they differ or do not tell. */
function shared(replies: readonly unknown[] | undefined): string | undefined {
  const values = new Set(replies?.map(configValue))
  return values.size === 1 ? [...values][0] : undefined
}

/** CONFIG GET answers a list of names and values, or, by the protocol's third version, a map. */
function configValue(reply: unknown): string | undefined {
  if (Array.isArray(reply)) return reply.length < 2 ? undefined : text(reply[1])
  if (reply instanceof Map) return configValue([...reply].flat())
  if (typeof reply === 'object' && reply !== null) return configValue(Object.entries(reply).flat())
  return undefined
}

function toInfo(reply: string): Map<string, string> {
  const lines = reply.split('\r\n').filter((line) => line.includes(':'))
  return new Map(
    lines.map((line) => {
      const colon = line.indexOf(':')
      return [line.slice(0, colon), line.slice(colon + 1)]
    }),
  )
}

function text(value: unknown): string {
  return Buffer.isBuffer(value) ? value.toString() : String(value)
}
