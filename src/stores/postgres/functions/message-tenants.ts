/** Adds, announces and reads messages with a tenant. `message-turns.ts` claims them. */
import { epochMs, MESSAGE, ms, NOW, PARTITION, SETTINGS, WAITING } from './parts.ts'
import { NEWS } from './outbox.ts'

/** How often a call retries if the row of its partition is removed between two statements. */
const ADD_TRIES_MAX = 20

/** Like `message_add`, with the tenant. */
const ADD_3 = `
CREATE FUNCTION "{schema}"."{table}_message_add_3" (
  p_now_ms float8, p_id uuid, p_topic text, p_tenant text, p_key text, p_partition text,
  p_payload bytea, p_delay_ms float8
) RETURNS text LANGUAGE plpgsql VOLATILE ${SETTINGS} AS $body$
  DECLARE
    v_now timestamptz := ${NOW};
  BEGIN
    FOR v_try IN 1 .. CASE WHEN p_partition IS NULL THEN 0 ELSE ${ADD_TRIES_MAX} END LOOP
      PERFORM FROM ${PARTITION} p
        WHERE p.topic = p_topic AND p.partition = p_partition FOR NO KEY UPDATE;
      EXIT WHEN FOUND;
      INSERT INTO ${PARTITION} (topic, partition) VALUES (p_topic, p_partition)
        ON CONFLICT (topic, partition) DO NOTHING;
      EXIT WHEN FOUND;
      IF v_try = ${ADD_TRIES_MAX} THEN
        RAISE EXCEPTION 'the row of the partition was removed during each of ${ADD_TRIES_MAX} tries'
          USING ERRCODE = 'serialization_failure';
      END IF;
    END LOOP;
    INSERT INTO ${MESSAGE} (id, topic, tenant, key, partition, payload, created_at, due_at)
      VALUES (p_id, p_topic, p_tenant, p_key, p_partition, p_payload, v_now,
        v_now + ${ms('p_delay_ms')});
    RETURN 'added';
  END $body$;`

/** A transaction sets this to `off` to add messages without a notification to relays. */
export const ANNOUNCES = 'oncekey.announce'

/**
 * Like `announce`, except in PREPARE TRANSACTION: PostgreSQL cannot prepare a transaction that has
 * notified. The trigger is deferred, so it runs inside of PREPARE TRANSACTION, which is then the
 * client's current statement. A statement that only contains these words is not announced either,
 * which delays its messages until a relay polls.
 */
const ANNOUNCE_3 = `
CREATE FUNCTION "{schema}"."{table}_announce_3" () RETURNS trigger LANGUAGE plpgsql
  SET search_path = pg_catalog, pg_temp AS $body$
  BEGIN
    IF current_setting('${ANNOUNCES}', true) = 'off'
        OR current_query() ~* 'prepare[[:space:]]+transaction' THEN
      RETURN NULL;
    END IF;
    PERFORM pg_notify('{channel}', '${NEWS}') FROM ${WAITING} w
      WHERE w.until > clock_timestamp();
    RETURN NULL;
  END $body$;`

/** Comes last: while the trigger is replaced, every transaction that adds a message waits. */
export const ANNOUNCED_3 = `
DROP TRIGGER announced ON ${MESSAGE};
CREATE CONSTRAINT TRIGGER announced AFTER INSERT ON ${MESSAGE}
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.due_at <= NEW.created_at)
  EXECUTE FUNCTION "{schema}"."{table}_announce_3" ();`

const VIEW_TYPES_3 = `out_id text, out_topic text, out_tenant text, out_key text,
  out_partition text, out_payload bytea, out_state text, out_attempt int, out_errors text,
  out_provider_id text, out_created_at_ms float8, out_due_at_ms float8, out_ended_at_ms float8`

const view = (payload: string) => `m.id::text, m.topic, m.tenant, m.key, m.partition, ${payload},
        m.state, m.attempt, m.errors::text, m.provider_id, ${epochMs('m.created_at')},
        ${epochMs('m.due_at')}, ${epochMs('m.ended_at')}`

const READ_3 = `
CREATE FUNCTION "{schema}"."{table}_message_read_3" (p_id uuid)
RETURNS TABLE (${VIEW_TYPES_3}) LANGUAGE plpgsql STABLE ${SETTINGS} AS $body$
  BEGIN
    RETURN QUERY SELECT ${view('m.payload')} FROM ${MESSAGE} m WHERE m.id = p_id;
  END $body$;`

const LIST_3 = `
CREATE FUNCTION "{schema}"."{table}_message_list_3" (p_state text, p_limit int)
RETURNS TABLE (${VIEW_TYPES_3}) LANGUAGE plpgsql STABLE ${SETTINGS} AS $body$
  BEGIN
    RETURN QUERY SELECT ${view('NULL::bytea')} FROM ${MESSAGE} m
      WHERE m.state = p_state ORDER BY m.number LIMIT p_limit;
  END $body$;`

export const MESSAGE_TENANT_FUNCTIONS_3: readonly string[] = [ADD_3, ANNOUNCE_3, READ_3, LIST_3]
