-- The transactions of other sessions that have a lock on a partition, or on its log storage.
create or replace function postbus.users_of_partition(storage_id integer, epoch integer) returns text[]
language sql volatile as $$
    select array(select k.virtualtransaction from pg_locks k
                  where k.relation in (to_regclass(format('postbus.%I', postbus.partition_name(storage_id, epoch))),
                                       to_regclass(format('postbus.%I', format('segment_%s', storage_id))))
                    and k.pid is distinct from pg_backend_pid()
                    and k.database = (select d.oid from pg_database d where d.datname = current_database()))
$$;
