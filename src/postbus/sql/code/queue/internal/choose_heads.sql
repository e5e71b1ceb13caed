-- Chooses the messages to claim from an ordered topic: of those that were found, the first one of each key, up to max_count
-- messages and max_bytes of payload. The others are parked behind their key until it is their turn: see pass_keys. is_left says
-- that some were left as they are: they lie beyond a limit, or another session is taking or passing on their key.
--
-- busy_key has a row for each key of which a message is in hand, leased or waiting for its next attempt. Only its head_id may be
-- claimed. A session that takes or passes on a key locks that row, so no key is taken twice, and none keeps parked messages without
-- a message in hand.
--
-- Waits only for claimers that are taking a key for the first time, in the order of the keys. So claimers cannot deadlock, and
-- nobody waits for a handler's transaction.
--
-- Messages that were published before the topic was ordered are claimed without regard to their keys.
--
-- Writes: queued, busy_key.  Locks: busy_key rows (skip locked).
create or replace function postbus.choose_heads(
    topic_id     bigint,
    tids         tid[],
    max_count    integer,
    max_bytes    bigint,
    out heads    tid[],
    out is_left  boolean
)
language plpgsql as $$
declare
    _keys   text[] := array(select distinct q.key from postbus.queued q where q.ctid = any (tids) and q.ordered order by q.key);
    _busy   text[];
    _taken   text[];
    _fresh  text[];
    _parked integer;
begin
    perform postbus.check_isolation();
    _busy := array(select b.key from postbus.busy_key b where b.topic_id = choose_heads.topic_id and b.key = any (_keys));
    _taken := array(select b.key from postbus.busy_key b
                    where b.topic_id = choose_heads.topic_id and b.key = any (_busy)
                      for update skip locked);
    with added as (
        insert into postbus.busy_key (topic_id, key)
        select choose_heads.topic_id, wanted.key from unnest(_keys) as wanted (key)
         where wanted.key <> all (_busy) order by wanted.key
        on conflict on constraint busy_key_pkey do nothing
        returning busy_key.key
    )
    select coalesce(array_agg(added.key), array[]::text[]) into _fresh from added;
    _taken := _taken || _fresh;
    -- The first message of a key that was not busy need not be among those found.
    update postbus.busy_key b
       set head_id = (select q.id from postbus.queued q
                       where q.topic_id = b.topic_id and q.key = b.key and q.ordered
                       order by q.topic_id, q.key, q.id limit 1)
     where b.topic_id = choose_heads.topic_id and b.key = any (_fresh);
    perform postbus.unpark_heads(topic_id, _fresh);

    select array_agg(head.tid order by head.n) into heads
      from (select found.tid, found.n,
                   row_number() over in_order as count_before,
                   sum(size.bytes) over in_order - size.bytes as bytes_before
              from unnest(tids) with ordinality as found (tid, n)
              join postbus.queued q on q.ctid = found.tid
             cross join lateral (select length(q.payload) + postbus.headers_size(q.headers) as bytes) as size
              left join postbus.busy_key b on b.topic_id = q.topic_id and b.key = q.key
             where (b.head_id = q.id and b.key = any (_taken)) or not q.ordered
            window in_order as (order by found.n)) as head
     where head.count_before <= max_count and head.bytes_before < max_bytes;

    update postbus.queued q set parked = true
      from postbus.busy_key b
     where q.ctid = any (tids) and q.ordered and b.topic_id = q.topic_id and b.key = q.key and b.key = any (_taken) and b.head_id <> q.id;
    get diagnostics _parked = row_count;
    is_left := coalesce(cardinality(heads), 0) + _parked < cardinality(tids);
end $$;
