-- Keeps receipts of deferred messages of subscriptions that end, or whose cursors are set past the messages: these were not
-- settled, although they are in a stretch. The caller removes the rows.
--
-- Writes: receipt.
create or replace function postbus.note_left_behind(topic postbus.topic, messages tid[], outcome text) returns void
language sql as $$
    select postbus.keep_receipt(topic, r.subscription_id, r.lane, array_agg(r.id), array_agg(r.sequence), array_agg(note_left_behind.outcome),
                                array_agg(r.attempts), array_agg(r.last_error), array_agg(r.member), array_agg(r.stretch), clock_timestamp())
      from postbus.deferred r where r.ctid = any (messages) group by r.subscription_id, r.lane
$$;
