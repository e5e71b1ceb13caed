-- The fields of an object that another one does not have, or has with another value.
create or replace function postbus.differing(these jsonb, others jsonb) returns jsonb
language sql immutable as $$
    select coalesce(jsonb_object_agg(field.key, field.value), '{}') from jsonb_each(these) as field
     where others -> field.key is distinct from field.value
$$;
