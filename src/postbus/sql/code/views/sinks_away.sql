-- Sinks that relays of living processes cannot reach: since when, and the last error.
create or replace view postbus.sinks_away as
select a.topic, nullif(a.group_name, '') as group_name, a.process, a.sink, a.since, a.told_at, a.error
  from postbus.sink_away a
 where a.told_at > clock_timestamp() - postbus.alive_for();
