import { call } from '../sql.ts'

export const STEP = call(
  'step',
  [
    'float8',
    'text::bool',
    'text::bytea',
    'text',
    'int',
    'text',
    'int',
    'text::bytea',
    'text',
    'text',
    'int',
    'text::bytea',
    'text::bytea',
    'text',
    'text',
    'text',
    'text::bytea',
    'float8',
  ],
  ['kind', 'written', 'own', 'state', 'result', 'expires_at_ms'],
)

export const LOAD = call(
  'load',
  ['uuid[]'],
  [
    'record_id',
    'name',
    'number',
    'kind',
    'state',
    'request',
    'result',
    'downstream_key',
    'provider_id',
    'attempt',
    'first_sent_at_ms',
    'sent_at_ms',
    'done_at_ms',
  ],
)

export const ORPHANS = call(
  'orphans',
  ['float8', 'text[]', 'int[]', 'int'],
  ['name', 'version', 'record_id'],
)
