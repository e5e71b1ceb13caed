-- Leases up to max_count messages of a queue, or of a PUB_SUB topic for a group, to `member`. They are settled by ack, retry,
-- dead_letter or release, with the token. With auto_ack they are settled at once: each is delivered at most once.
--
-- Leases at most 10,000 messages and 64 MiB, whatever the caller asks for. Returns a row for each lease, and a last row for the
-- next pop: see the type popped.
--
-- Writes: see claim and pop_group.
create or replace function postbus.pop(
    topic      text,
    group_name text default null,
    member     text default 'somebody',
    max_count  integer default 1,
    lease      interval default null,
    key        text default null,
    auto_ack   boolean default false,
    scan_floor text default null,
    max_bytes  bigint default 16777216
) returns setof postbus.popped
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _claimed record;
    _row     postbus.popped;
begin
    perform postbus.check_pop(max_count, lease);
    if group_name is not null then
        perform postbus.check_member(member);
        perform postbus.check_cluster();
        return query
        select * from postbus.pop_group(topic, group_name, member, least(max_count, 10000), lease, key, auto_ack, scan_floor,
                                        least(max_bytes, 67108864), clock_timestamp());
        return;
    elsif key is not null then
        perform postbus.refuse('PB402', 'key is given for a queue: only groups pop by key',
            'leave key out: messages of a queue are popped in their order');
    end if;
    select * into _claimed from postbus.claim_as_of(topic, member, max_count, lease, scan_floor, max_bytes, clock_timestamp());
    if _claimed.token is not null then
        if auto_ack then
            perform postbus.ack_leases(array[_claimed.token]);
        end if;
        _row.topic := topic;
        _row.token := case when not auto_ack then _claimed.token end;
        _row.ends_at := _claimed.ends_at;
        _row.lease_length := _claimed.lease_length;
        _row.ids := _claimed.ids;
        _row.published_ats := _claimed.published_ats;
        _row.attempts := _claimed.attempts;
        _row.priorities := _claimed.priorities;
        _row.keys := _claimed.keys;
        _row.correlation_ids := _claimed.correlation_ids;
        _row.content_types := _claimed.content_types;
        _row.headers := _claimed.headers;
        _row.payloads := _claimed.payloads;
        return next _row;
    end if;
    _row := null;
    _row.more := _claimed.more;
    _row.next_due := _claimed.next_due;
    _row.next_scan_floor := _claimed.next_scan_floor;
    return next _row;
end $$;
