-- Tokens can be limited to groups, and be without payloads. They know who made them, and when they were last used.
alter table postbus.token
    add column groups       text[] not null default '{*}',     -- patterns: * stands for any text
    add column payloads     boolean not null default true,     -- whether it is shown what publishers and handlers have written
    add column created_by   text,                              -- the database user; null for tokens that are older than this column
    add column last_used_at timestamptz;                       -- written seldom: see note_token_uses

drop function if exists postbus.create_token(text, bytea, text, text[], text[], interval);
drop function if exists postbus.check_token(text, bytea, timestamptz);
