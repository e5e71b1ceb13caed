-- The id from which on a group wants messages: the start that subscribe or seek has set last, or that of a catch-up that left older
-- messages out. Null: it wants all. Messages of transactions that were open just then may have lower ids.
create or replace function postbus.first_wanted(subscription_id bigint) returns bigint
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _topic  postbus.topic := postbus.subscribed_topic(subscription_id);
    _found  postbus.subscription;
    _cursor postbus.log_cursor;
    _first  bigint;
begin
    select * into _found from postbus.subscription s where s.id = first_wanted.subscription_id;
    _cursor := (
        select l.cursor
          from (select _found.id as id
                union all select u.subscription_id from postbus.catch_up u
                            join postbus.subscription s on s.id = u.subscription_id
                           where s.catch_up_of = _found.id and u.skipped > 0) as part
          join postbus.ledger l on l.subscription_id = part.id and l.moved in ('start', 'seek', 'skip')
         order by l.at desc, l.number desc limit 1);
    if (_cursor.seen).sequence is null then         -- removed by now, as without receipts: then the group's start
        _cursor.seen := case _found.start when 'FROM_NOW' then _found.subscribed end;
        _cursor.since_id := _found.start_id;
        _cursor.since_at := _found.start_at;
    end if;
    if _cursor.since_at is not null then
        _first := (select min(s.sequence) from postbus.segment s
                    where s.storage_id = _topic.storage_id and s.topic_id = _topic.id and s.published_at >= _cursor.since_at);
        return postbus.first_id(coalesce(_first, postbus.last_sequence(_topic.storage_id) + 1));
    end if;
    return coalesce(_cursor.since_id,
                    postbus.first_id(nullif(coalesce(nullif(_cursor.done_sequence, 0) - 1, (_cursor.seen).sequence), 0)) + 1024);
end $$;
