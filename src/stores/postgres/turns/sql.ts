/** The calls that hand out work in turns. Beside work, their rows say where the turns stopped. */
import { call, VIEW } from '../sql.ts'

const TURN = ['kind', 'name', 'version', ...VIEW]

export const DUE = call(
  'due_4',
  ['float8', 'text[]', 'int[]', 'text[]', 'text::bool', 'int', 'text[]'],
  TURN,
)

export const TAKE_UNKNOWN = call(
  'take_unknown_4',
  [
    'float8',
    'int',
    'float8',
    'text',
    'int',
    'text[]',
    'int[]',
    'text[]',
    'text[]',
    'int[]',
    'text[]',
  ],
  TURN,
)

export const CLAIM_MESSAGES = call(
  'message_take_3',
  [
    'float8',
    'text[]',
    'int[]',
    'text[]',
    'text::bool',
    'text[]',
    'text::jsonb',
    'text[]',
    'int',
    'float8',
    'text',
    'float8',
  ],
  [
    'kind',
    'id',
    'topic',
    'tenant',
    'key',
    'partition',
    'payload',
    'attempt',
    'provider_id',
    'created_at_ms',
  ],
)
