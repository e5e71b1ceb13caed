-- Takes messages out of a lease: the fence that every settlement passes. Returns those that were open
-- in it; the others are lost, and nothing has changed for them.
--
-- Writes: lease.  Locks: the lease row.
create or replace function postbus.close_messages(
    token uuid,
    ids   bigint[],
    out lease    postbus.lease,
    out messages postbus.queue_message[],
    out lost     bigint[]
)
language plpgsql as $$
declare
    _left bigint[];
begin
    select * into lease from postbus.lease l where l.token = close_messages.token for update;
    if lease.token is null then
        messages := array[]::postbus.queue_message[];
        lost := ids;
        return;
    end if;
    messages := array(select message from unnest(lease.messages) as message
                       where message.id = any (ids) and message.id = any (lease.open_ids));
    lost := array(select wanted.id from unnest(ids) as wanted (id) where (wanted.id = any (lease.open_ids)) is not true);
    _left := array(select open.id from unnest(lease.open_ids) as open (id) where (open.id = any (ids)) is not true);
    if cardinality(_left) = 0 then
        delete from postbus.lease l where l.token = close_messages.token;
    elsif cardinality(messages) > 0 then
        update postbus.lease l set open_ids = _left where l.token = close_messages.token;
    end if;
end $$;
