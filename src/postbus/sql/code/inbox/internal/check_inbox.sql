-- Refuses invalid names and windows of the inbox.
create or replace function postbus.check_inbox(consumer text, message_id text, keep interval) returns void
language plpgsql as $$
begin
    if (length(consumer) between 1 and 200) is not true then
        perform postbus.refuse('PB402', format('bad name of a consumer: %L', left(consumer, 220)), 'give 1 to 200 characters');
    elsif (length(message_id) between 1 and 500) is not true then
        perform postbus.refuse('PB402', format('bad id of a message: %L', left(message_id, 220)), 'give 1 to 500 characters');
    elsif (keep >= interval '1 second' and keep <= interval '36600 days') is not true then
        perform postbus.refuse('PB402', format('bad window of the inbox: %s', keep), 'keep records for 1 second to 100 years');
    end if;
end $$;
