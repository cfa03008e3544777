import { call, VIEW } from '../sql.ts'

export const POSTPONE = call('postpone', ['float8', 'uuid', 'int', 'int', 'float8'], ['done'])

export const ACT_READ = call(
  'act_read_4',
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
  'act_write_4',
  ['text::bytea', 'text::jsonb', 'text::jsonb', 'text::bool', 'text::bytea', 'text::jsonb'],
  ['done'],
)

export const LIST_DISCARDED = call(
  'discarded',
  ['uuid', 'int'],
  ['record_id', 'attempt', 'discarded_at_ms', 'result', 'operation'],
)

export const LOCK_MESSAGE = call('message_lock', ['float8', 'uuid'], ['state', 'attempt', 'now_ms'])

export const MOVE_MESSAGE = call('message_move', ['float8', 'uuid', 'text'], ['id'])

export const LIST_AUDIT = call(
  'audit_list',
  ['text', 'int'],
  ['at_ms', 'act', 'subject', 'who', 'why', 'detail'],
)
