/** The machine of a run, without its name or other identifying data. */
import { statfsSync } from 'node:fs'
import { arch, cpus, loadavg, platform, release, tmpdir, totalmem } from 'node:os'

export interface Machine {
  readonly processor: string
  readonly cores: number
  readonly memoryGiB: number
  readonly system: string
  readonly fileSystem: string
  readonly node: string
  readonly versions: Readonly<Record<string, string>>
  /** The load of the minute before the run. Above zero, other processes were running. */
  readonly loadBefore: number
}

/** The magic numbers of common file systems. */
const FILE_SYSTEMS: Readonly<Record<number, string>> = {
  0xef53: 'ext4',
  0x58465342: 'xfs',
  0x9123683e: 'btrfs',
  0x01021994: 'tmpfs (in memory: nothing here is durable)',
  0x794c7630: 'overlay',
  0x2fc12fc1: 'zfs',
}

export function describeMachine(): Machine {
  const processors = cpus()
  return {
    processor: processors[0]?.model.trim() ?? arch(),
    cores: processors.length,
    memoryGiB: Math.round(totalmem() / 2 ** 30),
    system: `${platform()} ${/^[\d.]+/.exec(release())?.[0] ?? ''}`.trim(),
    fileSystem: FILE_SYSTEMS[statfsSync(tmpdir()).type] ?? 'unknown',
    node: process.version,
    versions: {},
    loadBefore: loadavg()[0] ?? 0,
  }
}

export function toLine(machine: Machine): string {
  const { processor, cores, memoryGiB, system, fileSystem, node } = machine
  const versions = Object.entries(machine.versions).map(([name, version]) => `${name} ${version}`)
  return [
    `${processor}, ${cores} cores, ${memoryGiB} GiB`,
    `${system}, ${fileSystem}`,
    `Node ${node}`,
    ...versions,
  ].join('; ')
}
