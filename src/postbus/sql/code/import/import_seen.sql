-- Marks messages of another outbox that no group needs any more. If that outbox only knows how far a group has come, a message
-- that is not marked was not there when its groups were imported, and so is new to them.
--
-- Writes: imported; see note_action.
create or replace function postbus.import_seen(source text, source_ids text[]) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _count bigint;
begin
    insert into postbus.imported (source, source_id) select import_seen.source, unnest(source_ids) on conflict do nothing;
    get diagnostics _count = row_count;
    if _count > 0 then
        perform postbus.note_action('import.seen', target => import_seen.source, affected => _count);
    end if;
end $$;
