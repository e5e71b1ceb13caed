-- It checks the correlation id as well.
drop function if exists postbus.import_problem(postbus.topic, bytea, text, jsonb);
