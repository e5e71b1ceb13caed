-- breaking
-- What moves or changes something is proved by a random token: of a lane, or of a process. Contents of messages are read from the log,
-- and no longer taken from who puts them off.
alter table postbus.worker add column secret uuid;
alter table postbus.sweeper add column secret uuid;
alter table postbus.sink_away add column secret uuid;

drop function if exists postbus.advance(bigint[], integer[], bigint[], text[], bigint[], integer[], bigint[]);
drop function if exists postbus.put_off(bigint, integer, uuid, text[], bigint[], bigint[], timestamptz[], text[], text[], text[], text[],
                                        bytea[], interval[], text[], text[], integer, timestamptz);
drop function if exists postbus.put_off(bigint, integer, uuid, text[], bigint[], bigint[], timestamptz[], text[], text[], text[], text[],
                                        bytea[], interval[], text[], text[], integer);
drop function if exists postbus.heartbeat(text, text, integer, text[]);
drop function if exists postbus.sign_off(text);
drop function if exists postbus.note_sweeper(text, text, integer);
drop function if exists postbus.forget_sweeper(text);
drop function if exists postbus.note_sink_away(text, text, text, text, text);
drop function if exists postbus.forget_sink_away(text, text, text);
drop function if exists postbus.lease_lanes(text, bigint[], uuid[], timestamptz);
drop function if exists postbus.lease_lanes(text, bigint[], uuid[]);
drop function if exists postbus.leave_groups(text, bigint[], boolean, timestamptz);
drop function if exists postbus.leave_groups(text, bigint[], boolean);
drop function if exists postbus.report_catch_up(bigint, double precision, interval);
