-- Removes what a storage no longer keeps, judged for each topic by its own options and groups: its retention is over, and
-- every group that keeps messages has had them; or its max_retention is over, and then it is recorded which group lost how
-- many messages. Both count from the moment when the leaf was closed; max_retention in a leaf that lasts longer than the storage's
-- period from when it was marked (mark_leaf).
--
-- A leaf that no topic keeps is dropped; from one that a topic still keeps the other topics' messages are deleted (thin_leaf).
-- One drop or one step at a time, since the lock that a drop takes lasts to the end of the transaction. Returns the name of the
-- leaf that was dropped, how many rows were deleted from others, and how many messages went. `blocked`: there is a leaf to
-- drop, perhaps, and others use it, or may still be writing to it.
--
-- Hardly waits: while a transaction that is open for long uses the storage, drops are left for later; short ones are
-- waited for, and hold up new ones, for 50 milliseconds at most.
--
-- Writes: log_leaf, leaf_topic, loss, tables; see thin_leaf and thin_marked.
create or replace function postbus.drop_leaves(
    storage_id integer,
    ended      xid8,            -- all who have a lower transaction id had ended when this sweep began to count
    as_of      timestamptz,
    out dropped  text[],
    out thinned  bigint,
    out messages bigint,
    out blocked  boolean
)
language plpgsql as $$
declare
    _least interval := (select min(least(t.retention, t.zero_subscription_retention, t.max_retention))
                          from postbus.topic t where t.storage_id = drop_leaves.storage_id);
    _step_size integer := (select least(s.batch_size, 1000) from postbus.sweep_setting s);
    _leaf  postbus.log_leaf;
    _judge record;
    _users text[];
    _stuck boolean := false;        -- who uses one leaf by way of the storage uses all: one try is enough
begin
    dropped := array[]::text[];
    thinned := 0;
    messages := 0;
    blocked := exists (select from postbus.log_leaf l
                         join postbus.leaf_topic part on part.storage_id = l.storage_id and part.epoch = l.epoch
                         join postbus.topic t on t.id = part.topic_id
                        where l.storage_id = drop_leaves.storage_id and l.closed_txid >= ended
                          and l.closed_at <= as_of - least(t.retention, t.zero_subscription_retention, t.max_retention));
    for _leaf in
        select * from postbus.log_leaf l
         where l.storage_id = drop_leaves.storage_id and l.closed_txid < ended       -- all who wrote to it are counted
           and (_least is null or l.closed_at <= as_of - _least)                     -- of others every topic keeps its messages
         order by l.epoch
    loop
        if not _leaf.listed then
            perform postbus.list_topics(storage_id, _leaf.epoch);
        end if;
        select j.gone, j.is_kept into _judge from postbus.judge_leaf(_leaf, as_of) as j;
        if not _judge.is_kept then
            continue when _stuck;
            _stuck := true;
            _users := postbus.users_of_leaf(storage_id, _leaf.epoch);
            if _users <> '{}' then
                perform pg_sleep(0.02);
                continue when _users && postbus.users_of_leaf(storage_id, _leaf.epoch);
            end if;
            continue when not postbus.drop_leaf(_leaf, _judge.gone, as_of);
            dropped := array[postbus.leaf_name(storage_id, _leaf.epoch)];
            messages := _leaf.messages;
            blocked := false;
            return;
        elsif _judge.gone <> '{}' then
            select t.rows, t.messages into thinned, messages
              from postbus.thin_leaf(_leaf, _judge.gone, _step_size, as_of) as t;
            if thinned > 0 then
                return;
            end if;
        end if;
    end loop;
    select step.rows, step.messages into thinned, messages from postbus.thin_marked(storage_id, ended, _step_size, as_of) as step;
    blocked := blocked or _stuck;
end $$;
