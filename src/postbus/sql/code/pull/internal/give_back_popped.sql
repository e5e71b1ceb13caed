-- Returns messages that a pop has in hand to the pull buffer: those with these ids, or all with the token. They are tried again
-- after `delay` or the topic's backoff; or at once, if the attempt does not count.
--
-- Unless the group lets later messages pass, their keys wait for them: messages of the same key behind them that this pop has in
-- hand go back as well, as if they had not been popped, so that none is done before them.
--
-- Writes: deferred.
create or replace function postbus.give_back_popped(
    token   uuid,
    ids     bigint[],
    is_none boolean,
    delay   interval,
    error   text,
    as_of   timestamptz
) returns void
language sql as $$
    with in_hand as (
        select r.ctid as tid, r.subscription_id, r.lane, r.key, r.sequence, r.id, t as topic, s.on_failure = 'block' as blocks,
               ids is null or r.id = any (ids) as is_asked
          from postbus.deferred r
          join postbus.subscription s on s.id = r.subscription_id
          join postbus.topic t on t.id = s.topic_id
         where r.token = give_back_popped.token
    ), going as (
        select h.tid, h.is_asked, h.topic,
               h.blocks and h.key is not null
               and row_number() over (partition by h.subscription_id, h.lane, h.key order by h.sequence, h.id) > 1 as is_behind
          from in_hand h
         where h.is_asked
            or h.blocks and exists (select from in_hand before
                                     where before.is_asked and before.subscription_id = h.subscription_id and before.lane = h.lane
                                       and before.key = h.key and (before.sequence, before.id) < (h.sequence, h.id))
    )
    update postbus.deferred r
       set token = null, member = null, alone = null, parked = going.is_behind,
           suspected = r.suspected and (is_none or not going.is_asked),
           attempts = case when going.is_asked and not is_none then r.attempts else greatest(r.attempts - 1, 0) end,
           due_at = as_of + case when going.is_asked and not is_none
                                 then coalesce(give_back_popped.delay, postbus.backoff(going.topic, r.attempts)) else interval '0' end,
           last_error = case when going.is_asked then coalesce(left(give_back_popped.error, 4000), r.last_error) else r.last_error end
      from going
     where r.ctid = going.tid
$$;
