-- Refuses a text that is no content type: see is_content_type.
create or replace function postbus.refuse_content_type(given text) returns void
language sql as $$
    select postbus.refuse('PB402', format('content_type %L is not one of at most 255 characters', left(given, 220)),
        'give type/subtype, and parameters if it has any, such as text/plain; charset=utf-8')
$$;
