-- The migrations and the code that are installed in this database. Every client asks before it starts.
create or replace function postbus.schema_state(
    out migrations    integer,      -- the highest number
    out baseline      text,         -- the name of the first one
    out breaking      integer,      -- the highest number that older clients must refuse
    out code_version  text,
    out code_checksum text
)
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select (select coalesce(max(m.number), 0) from postbus.migration m),
           (select m.name from postbus.migration m where m.number = 1),
           (select coalesce(max(m.number), 0) from postbus.migration m where m.breaking),
           (select i.code_version from postbus.installed i),
           (select i.code_checksum from postbus.installed i)
$$;
