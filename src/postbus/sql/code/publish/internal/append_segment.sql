-- Appends messages of one lane to the log, as one segment. If no lane is given, it follows from the number. Returns the segment's
-- number.
--
-- The order matters: first the transaction's id, then the storage's epoch, then the number. So a transaction that begins to write
-- later gets a higher sequence, and a closed partition gets nothing from transactions that begin later.
--
-- Writes: segment.
create or replace function postbus.append_segment(
    storage_id      integer,
    topic_id        bigint,
    lanes           integer,                    -- how many the topic has
    lane            integer,
    published_at    timestamptz,
    content_type    text,
    content_types   text[],
    keys            text[],
    correlation_ids text[],
    headers         jsonb[],
    payloads        bytea[],
    bytes           bigint,
    number          bigint default null,
    lines           integer default null        -- how many messages there are in the one payload, if it is of lines
) returns bigint
language plpgsql as $$
declare
    _is_first boolean := pg_current_xact_id_if_assigned() is null;
    _epoch    bigint := case when pg_current_xact_id() is not null then postbus.published_epoch(storage_id) end;
begin
    -- The first insert of a transaction learns of new partitions anyway, since it locks the log.
    number := case when _is_first or postbus.learn_of_partitions()
                   then coalesce(number, nextval('postbus.segment_number')) end;
    if _epoch is null then      -- the storage is new
        if not exists (select from postbus.log_partition l
                        where l.storage_id = append_segment.storage_id and l.epoch = 1 and l.closed_txid is null) then
            perform postbus.refuse('PB507', format('sequence postbus.log_epoch_%s has lost its value', storage_id),
                format('find the newest table postbus.segment_%s_N that has rows, and set the sequence to that N: '
                       'select setval(''postbus.log_epoch_%s'', N)', storage_id, storage_id));
        end if;
        execute format('insert into postbus.%I (storage_id, sequence, txid, topic_id, lane, count, bytes, published_at, content_type,
                                                content_types, keys, correlation_ids, headers, payloads, in_lines)
                        values ($1, $2, pg_current_xact_id(), $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)',
                       postbus.partition_name(storage_id, 1))
            using storage_id, (1::bigint << 43) + number, topic_id, coalesce(lane, number % lanes), coalesce(lines, cardinality(payloads)),
                  bytes, published_at, content_type, content_types, keys, correlation_ids, headers, payloads,
                  case when lines is not null then true end;
        return number;
    end if;
    insert into postbus.segment (storage_id, sequence, txid, topic_id, lane, count, bytes, published_at, content_type, content_types, keys,
                                 correlation_ids, headers, payloads, in_lines)
    values (append_segment.storage_id, (_epoch << 43) + append_segment.number, pg_current_xact_id(), append_segment.topic_id,
            coalesce(append_segment.lane, append_segment.number % lanes), coalesce(lines, cardinality(append_segment.payloads)),
            append_segment.bytes, append_segment.published_at, append_segment.content_type, append_segment.content_types,
            append_segment.keys, append_segment.correlation_ids, append_segment.headers, append_segment.payloads,
            case when lines is not null then true end);
    return number;
end $$;
