-- Gives messages that a pop has in hand back to the shelf of their group: those with these ids, or all of its token. To be
-- tried again after `delay` or the topic's backoff; or, where the attempt was none, at once.
--
-- They block their keys (unless the group lets others pass): those of the same key that this pop has in hand behind them go
-- back, too, as if they had not been popped, so that none is done before them.
--
-- Writes: retrying.
create or replace function postbus.give_back_shelved(
    token   uuid,
    ids     bigint[],
    is_none boolean,
    delay   interval,
    error   text,
    as_of   timestamptz
) returns void
language sql as $$
    with held as (
        select r.ctid as tid, r.subscription_id, r.lane, r.key, r.position, r.id, t as topic, s.on_failure = 'block' as blocks,
               ids is null or r.id = any (ids) as is_asked
          from postbus.retrying r
          join postbus.subscription s on s.id = r.subscription_id
          join postbus.topic t on t.id = s.topic_id
         where r.token = give_back_shelved.token
    ), going as (
        select h.tid, h.is_asked, h.topic,
               h.blocks and h.key is not null
               and row_number() over (partition by h.subscription_id, h.lane, h.key order by h.position, h.id) > 1 as is_behind
          from held h
         where h.is_asked
            or h.blocks and exists (select from held before
                                     where before.is_asked and before.subscription_id = h.subscription_id and before.lane = h.lane
                                       and before.key = h.key and (before.position, before.id) < (h.position, h.id))
    )
    update postbus.retrying r
       set token = null, member = null, alone = null, parked = going.is_behind,
           suspected = r.suspected and (is_none or not going.is_asked),
           attempts = case when going.is_asked and not is_none then r.attempts else greatest(r.attempts - 1, 0) end,
           due_at = as_of + case when going.is_asked and not is_none
                                 then coalesce(give_back_shelved.delay, postbus.backoff(going.topic, r.attempts)) else interval '0' end,
           last_error = case when going.is_asked then coalesce(left(give_back_shelved.error, 4000), r.last_error) else r.last_error end
      from going
     where r.ctid = going.tid
$$;
