-- Whether sweeping keeps up, and if not, why. Unhealthy: a backlog of more than max_backlog messages; a backlog that has grown
-- over the last three intervals, so that sweeping falls behind; problems of the jobs (sweep_problems); and overdue work
-- (sweep_overdue), whether there is a process or not. `processes` are those that sweep.
--
-- Rates are those of PUB_SUB topics, in messages per second over the last six intervals. They need not be equal: swept messages
-- were published one retention ago, and are removed by the partition.
create or replace function postbus.sweep_health_as_of(
    as_of       timestamptz default clock_timestamp(),
    max_backlog bigint default 1000000,
    out healthy            boolean,
    out reason             text,
    out backlog            bigint,
    out finished_rows      bigint,
    out finished_messages  bigint,
    out partitions         bigint,
    out partition_messages bigint,
    out published_rate     double precision,
    out swept_rate         double precision,
    out processes          bigint
)
language plpgsql stable as $$
declare
    _reasons text[];
    _since   timestamptz := as_of - 6 * (select s.interval from postbus.sweep_setting s);
    _last    bigint[] := array(select s.backlog from postbus.sweep_sample s order by s.at desc limit 4);
begin
    select b.finished_rows, b.finished_messages, b.partitions, b.partition_messages, b.finished_messages + b.partition_messages
      into finished_rows, finished_messages, partitions, partition_messages, backlog
      from postbus.sweep_backlog(as_of) as b;
    -- Samples are taken when something has changed: the last one before a time holds for that time, too.
    select greatest(postbus.published_so_far() - s.published, 0) / nullif(extract(epoch from as_of - greatest(s.at, _since)), 0),
           greatest(postbus.swept_so_far() - s.swept, 0) / nullif(extract(epoch from as_of - greatest(s.at, _since)), 0)
      into published_rate, swept_rate
      from postbus.sweep_sample s
     order by s.at > _since, case when s.at <= _since then s.at end desc, s.at limit 1;
    processes := (select count(*) from postbus.worker w where w.seen_at > as_of - postbus.alive_for())
                 + (select count(*) from postbus.sweeper w where w.seen_at > as_of - postbus.alive_for());
    _reasons := array(select postbus.sweep_overdue(as_of));
    if _reasons <> '{}' and processes = 0 then
        _reasons := 'no process sweeps: run a worker, postbus serve or postbus sweep --forever'::text || _reasons;
    end if;
    _reasons := _reasons || array(select postbus.sweep_problems(as_of));
    if backlog > max_backlog then
        _reasons := _reasons || format('%s messages are past their retention: sweep more often, or more at a time', backlog);
    end if;
    if _last[1] > _last[2] and _last[2] > _last[3] and _last[3] > _last[4] then
        _reasons := _reasons || format('sweeping falls behind: %s messages were left over, now %s; %s per second are published, %s swept',
                                       _last[4], _last[1], round(published_rate::numeric, 1), round(swept_rate::numeric, 1));
    end if;
    healthy := _reasons = '{}';
    reason := nullif(array_to_string(_reasons, '; '), '');
end $$;
