-- Refuses a call that speaks for another process.
create or replace function postbus.refuse_process(name text) returns void
language plpgsql as $$
begin
    perform postbus.refuse('PB403', format('process %s belongs to somebody who has its secret', quote_literal(postbus.in_line(name, 200))),
        'give the secret that its heartbeats give, or choose another name');
end $$;
