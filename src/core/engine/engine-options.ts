import { checkStore } from '../store/check-store.ts'
import { optionalFunction, rejectUnknownOptions } from '../options.ts'
import type { EngineOptions } from './engine-contract.ts'
import { POLICY_OPTION_NAMES, type PolicyOptions } from './policy.ts'

const ENGINE_OPTION_NAMES = [
  ...POLICY_OPTION_NAMES,
  'store',
  'onEvent',
  'storeTimeoutMs',
  'breaker',
  'sweepEveryMs',
  'reapEveryMs',
  'encryption',
  'requireEncryption',
  'hashKeys',
  'clock',
] as const satisfies readonly (keyof EngineOptions)[]

/** The options of the engine itself, and those of its policy. */
export interface SplitEngineOptions {
  readonly parts: Omit<EngineOptions, keyof PolicyOptions>
  readonly policy: PolicyOptions
}

export function splitEngineOptions(options: EngineOptions): SplitEngineOptions {
  rejectUnknownOptions('createEngine', options, ENGINE_OPTION_NAMES)
  checkStore('createEngine.store', options.store)
  optionalFunction('createEngine.onEvent', options.onEvent)
  const policy: PolicyOptions = {}
  for (const name of POLICY_OPTION_NAMES) {
    if (options[name] !== undefined) Object.assign(policy, { [name]: options[name] })
  }
  return { parts: options, policy }
}
