-- Whether a message on the shelf of a group is the next of its key: none is before it, and no pop has another one in hand.
create or replace function postbus.is_first(
    subscription_id bigint,
    lane            integer,
    key             text,
    "position"      bigint,
    id              bigint,
    as_of           timestamptz
) returns boolean
language sql stable
return key is null or not exists (
    select from postbus.retrying other
     where other.subscription_id = is_first.subscription_id and other.lane = is_first.lane and other.key = is_first.key
       and other.id <> is_first.id
       and (other.token is not null and other.due_at > as_of or (other.position, other.id) < (is_first.position, is_first.id)));
