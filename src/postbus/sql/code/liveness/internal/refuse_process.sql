-- Refuses a call in the name of another process.
create or replace function postbus.refuse_process(name text) returns void
language plpgsql as $$
begin
    perform postbus.refuse('PB403', format('process %s belongs to another caller, which has its secret', quote_literal(postbus.in_line(name, 200))),
        'give the secret of its heartbeats, or choose another name');
end $$;
