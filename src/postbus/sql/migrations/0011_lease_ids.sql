-- pglz takes longer over the ids of a lease, a millisecond for a thousand, than all else that is done to them.
alter table postbus.lease alter column open_ids set storage external;
