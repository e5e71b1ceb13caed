-- The log storage for a PUB_SUB topic's segments: its own, or the shared one for its retention. Creates it if it is not there yet.
--
-- Writes: storage, log_partition, new tables and a sequence.  Locks: an advisory lock for the transaction.
create or replace function postbus.storage_for(topic postbus.topic) returns integer
language plpgsql as $$
declare
    _keeps   interval := greatest(topic.retention, topic.zero_subscription_retention);
    _storage postbus.log_storage;
begin
    perform pg_advisory_xact_lock(hashtext('postbus.log_storage'));
    if topic.storage = 'own' then
        _storage.id := coalesce((select max(s.id) + 1 from postbus.log_storage s where s.id >= 100), 100);
        _storage.name := topic.name;
        _storage.topic_id := topic.id;
        _storage.period := postbus.own_period(topic);
    else
        select shared.id, 'shared ' || shared.name, null, shared.retention, shared.period
          into _storage.id, _storage.name, _storage.topic_id, _storage.retention, _storage.period
          from (values (1, 'up to 1 hour', interval '1 hour', interval '5 minutes'),
                       (2, 'up to 1 day', interval '1 day', interval '2 hours'),
                       (3, 'up to 7 days', interval '7 days', interval '12 hours'),
                       (4, 'up to 31 days', interval '31 days', interval '2 days'),
                       (5, 'more than 31 days', null, interval '7 days')) as shared (id, name, retention, period)
         where shared.retention >= _keeps or shared.retention is null
         order by shared.id limit 1;
        if exists (select from postbus.log_storage s where s.id = _storage.id) then
            return _storage.id;
        end if;
    end if;
    insert into postbus.log_storage (id, name, topic_id, retention, period)
    values (_storage.id, _storage.name, _storage.topic_id, _storage.retention, _storage.period);
    execute format('create sequence postbus.%I cache 1', format('log_epoch_%s', _storage.id));
    execute format('create table postbus.%I (like postbus.segment) partition by range (sequence)', format('segment_%s', _storage.id));
    execute format('alter table postbus.%I attach partition postbus.%I for values in (%s)',
                   case when topic.storage = 'own' then 'segment' else 'segment_shared' end, format('segment_%s', _storage.id), _storage.id);
    execute format('create table postbus.%I (like postbus.receipt) partition by list (epoch)', format('receipt_%s', _storage.id));
    execute format('alter table postbus.receipt attach partition postbus.%I for values in (%s)', format('receipt_%s', _storage.id), _storage.id);
    perform postbus.add_partition(_storage.id, 1);
    return _storage.id;
end $$;
