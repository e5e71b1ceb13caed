-- Members that had several messages in hand when their leases ended. A note of its own, since marking the other messages would
-- wait for those who take them just then, and they for us.
create table postbus.crowded (
    member text not null
);
create index crowded_member_idx on postbus.crowded (member);
