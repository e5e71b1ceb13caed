-- Notes how many messages were published and swept so far, and how many are left to sweep, if that has changed. Keeps twenty
-- samples.
--
-- Writes: sweep_sample.
create or replace function postbus.sample_sweeping(as_of timestamptz) returns void
language plpgsql as $$
declare
    _now  postbus.sweep_sample;
    _last postbus.sweep_sample;
begin
    select as_of, postbus.published_so_far(), postbus.swept_so_far(), b.finished_messages + b.partition_messages
      into _now
      from postbus.sweep_backlog(as_of) as b;
    select * into _last from postbus.sweep_sample s order by s.at desc limit 1;
    if (_now.published, _now.swept, _now.backlog) is distinct from (_last.published, _last.swept, _last.backlog) then
        insert into postbus.sweep_sample (at, published, swept, backlog) values (_now.at, _now.published, _now.swept, _now.backlog)
        on conflict on constraint sweep_sample_pkey do nothing;
        delete from postbus.sweep_sample s where s.at <= (select old.at from postbus.sweep_sample old order by old.at desc offset 20 limit 1);
    end if;
end $$;
