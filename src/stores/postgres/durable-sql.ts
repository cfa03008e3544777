import { call, VIEW } from './sql.ts'

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

const OPERATIONS = ['float8', 'text[]', 'int[]', 'int']

export const DUE = call('due', OPERATIONS, ['name', 'version', ...VIEW])

export const ORPHANS = call('orphans', OPERATIONS, ['name', 'version', 'record_id'])

/** Called with literals, in a transaction of any kind: `add-in.ts` has the rest. */
export const ADD = '"{schema}"."{table}_message_add"({values})'

export const CLAIM_MESSAGES = call(
  'message_claim',
  ['float8', 'text[]', 'text[]', 'int', 'float8', 'text', 'float8'],
  ['kind', 'id', 'topic', 'key', 'partition', 'payload', 'attempt', 'provider_id', 'created_at_ms'],
)

export const SETTLE_MESSAGES = call(
  'message_settle',
  ['float8', 'uuid[]', 'text[]', 'text[]', 'text[]', 'text[]', 'float8[]', 'text[]::bool[]'],
  ['id'],
)

export const RENEW_MESSAGES = call(
  'message_renew',
  ['float8', 'uuid[]', 'text[]', 'float8'],
  ['id'],
)

const MESSAGE_VIEW = [
  'id',
  'topic',
  'key',
  'partition',
  'payload',
  'state',
  'attempt',
  'errors',
  'provider_id',
  'created_at_ms',
  'due_at_ms',
  'ended_at_ms',
]

export const READ_MESSAGE = call('message_read', ['uuid'], MESSAGE_VIEW)

export const LIST_MESSAGES = call('message_list', ['text', 'int'], MESSAGE_VIEW)

export const PRUNE_MESSAGES = call('message_prune', ['float8', 'int', 'float8'], ['count'])

export const LOCK_MESSAGE = call('message_lock', ['float8', 'uuid'], ['state', 'attempt', 'now_ms'])

export const MOVE_MESSAGE = call('message_move', ['float8', 'uuid', 'text'], ['id'])

export const TAKE_UNKNOWN = call('take_unknown', ['float8', 'int', 'float8'], VIEW)

export const POSTPONE = call('postpone', ['float8', 'uuid', 'int', 'int', 'float8'], ['done'])

export const ACT_READ = call(
  'act_read',
  ['float8', 'text::bytea', 'uuid', 'text', 'text'],
  [
    'now_ms',
    'phase_name',
    'phase_number',
    'phase_kind',
    'phase_state',
    'phase_request',
    'phase_result',
    'phase_downstream_key',
    'phase_provider_id',
    'phase_attempt',
    'phase_first_sent_at_ms',
    'phase_sent_at_ms',
    'phase_done_at_ms',
    ...VIEW,
    'result',
  ],
)

export const ACT_WRITE = call(
  'act_write',
  ['text::bool', 'text::bytea', 'text::jsonb', 'text::jsonb', 'text::jsonb'],
  ['done'],
)

export const LIST_AUDIT = call(
  'audit_list',
  ['text', 'int'],
  ['at_ms', 'act', 'subject', 'who', 'why', 'detail'],
)
