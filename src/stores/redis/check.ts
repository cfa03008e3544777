/** Checks how much of the data the configuration of a server keeps. */
import type { Driver } from './client.ts'
import { isNotAllowed } from './failures.ts'

export type RedisFindingKind =
  /** The server removes records when memory runs out. Claims fail unless `allowEviction` is set. */
  | 'evicts'
  /** The server will remove records if `maxmemory` is set. */
  | 'may_evict'
  /** A restart loses everything, or everything since the last snapshot. */
  | 'not_persistent'
  /** A power cut loses the last second or more. */
  | 'persists_late'
  /** A failover loses writes that the replica does not have yet. */
  | 'replicates_late'
  /** The server is older than 6.2. Claims fail. */
  | 'too_old'
  /** The server did not report its configuration. */
  | 'unchecked'

/** One guarantee that the configuration of the server does not give. */
export interface RedisFinding {
  readonly kind: RedisFindingKind
  /** Names the missing guarantee, and the setting that gives it. */
  readonly message: string
}

/** Result of `check()`. */
export interface RedisCheck {
  /** `false` if a finding makes claims fail. */
  readonly usable: boolean
  /** Empty if the check has found nothing wrong. */
  readonly findings: readonly RedisFinding[]
}

export interface CheckContext {
  readonly allowEviction: boolean
  readonly waitsForReplicas: boolean
  /** The advice differs, because `waitReplicas` does not work with a cluster. */
  readonly isCluster: boolean
}

/** The settings of one master, as far as it reports them. */
interface Settings {
  readonly info: ReadonlyMap<string, string>
  /** Read with CONFIG, which managed services block. */
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

/** Decides from `INFO` alone whether claims may be sent to a server. Warnings need CONFIG, too. */
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
  // The answers are in no particular order, so a value is used only if all masters have it.
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
    'Redis did not report its configuration (INFO is not allowed): set maxmemory-policy ' +
    'noeviction and appendonly yes, or keys may be lost, and a retry runs their work again',
}

const NOTHING_KEPT: RedisFinding = {
  kind: 'not_persistent',
  message:
    'Redis keeps nothing on disk (appendonly no, no save points): a restart loses every key, and ' +
    'a retry runs its work again. Set appendonly yes',
}

const ONLY_SNAPSHOTS: RedisFinding = {
  kind: 'not_persistent',
  message:
    'Redis keeps at most snapshots (appendonly no): a restart loses the keys since the last ' +
    'snapshot, and a retry runs their work again. Set appendonly yes',
}

const REPLICATES_LATE: RedisFinding = {
  kind: 'replicates_late',
  message:
    'Redis has replicas, and the store does not wait for them: a failover may lose the last ' +
    'keys, and a retry runs their work again. Set waitReplicas',
}

/** The server reports its good replicas only if min-replicas-to-write is set. */
function clusterReplicatesLate(info: ReadonlyMap<string, string>): RedisFinding {
  const isBounded = info.has('min_slaves_good_slaves')
  return {
    kind: 'replicates_late',
    message:
      'Redis Cluster acknowledges a write before its replicas have it: a failover may lose the ' +
      'last keys, and a retry runs their work again. ' +
      (isBounded
        ? 'min-replicas-to-write limits how many'
        : 'Set min-replicas-to-write 1 and a low min-replicas-max-lag on every node: a master ' +
          'without its replicas then rejects writes, which limits how many'),
  }
}

function persistsLate(appendfsync: string | undefined): RedisFinding {
  return {
    kind: 'persists_late',
    message:
      `Redis writes to disk after it has answered (appendfsync ${appendfsync ?? 'unknown'}): a ` +
      'power cut may lose the keys of the last second or more, and a retry runs their work ' +
      'again. Set appendfsync always',
  }
}

function evicts(policy: string): RedisFinding {
  return {
    kind: 'evicts',
    message:
      `Redis evicts records when memory runs out (maxmemory-policy ${policy}): their keys are ` +
      'lost, and a retry runs their work again. Set maxmemory-policy noeviction, or accept the ' +
      'loss with allowEviction: true',
  }
}

function mayEvict(policy: string): RedisFinding {
  return {
    kind: 'may_evict',
    message:
      `Redis would evict records if maxmemory were set (maxmemory-policy ${policy}). ` +
      'Set maxmemory-policy noeviction',
  }
}

function tooOld(version: string): RedisFinding {
  return { kind: 'too_old', message: `Redis ${version} is too old: use 6.2 or newer` }
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

/** The value that all masters have. `undefined` if they differ or do not report it. */
function shared(replies: readonly unknown[] | undefined): string | undefined {
  const values = new Set(replies?.map(configValue))
  return values.size === 1 ? [...values][0] : undefined
}

/** CONFIG GET returns a list of names and values, or a map in version 3 of the protocol. */
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
