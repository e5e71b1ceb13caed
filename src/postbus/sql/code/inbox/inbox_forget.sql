-- Forgets that a consumer has had a message, so that its next delivery has its effect again. Returns whether it was known.
--
-- Waits while another transaction has the message in hand.
--
-- Writes: inbox.  Locks: the inbox row of the message.
create or replace function postbus.inbox_forget(consumer text, message_id text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    delete from postbus.inbox i where i.consumer = inbox_forget.consumer and i.message_id = inbox_forget.message_id;
    return found;
end $$;
