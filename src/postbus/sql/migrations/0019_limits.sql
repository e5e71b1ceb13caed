-- Functions whose signatures change; the code files create them anew.
drop function if exists postbus.check_message(postbus.topic, integer, text, jsonb, integer, interval, timestamptz, text);
