-- Makes this session learn of partitions that were added since its transaction began to use the log. Always true.
--
-- Sessions learn of new tables when they lock one. A transaction that has the log locked already does not lock it again, so it
-- would not know a partition that was added since. Asking for the size of a fork that does not exist locks a table and unlocks it
-- at once; nobody keeps that table locked.
create or replace function postbus.learn_of_partitions() returns boolean
language sql volatile
return pg_relation_size('postbus.loss'::regclass, 'init') is not null;
