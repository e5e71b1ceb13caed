-- Whether a text is a content type: type/subtype, then parameters, in at most 255 printable ASCII characters. So it is one line
-- wherever a relay or a webhook sends it. Python has the same rule.
--
-- Every message is checked. So the check begins with the usual content types, and goes on with all that have no parameters: a
-- regular expression takes ten microseconds, and removing all allowed letters takes one.
create or replace function postbus.is_content_type(given text) returns boolean
language sql immutable parallel safe
return given in ('application/json', 'application/octet-stream', 'text/plain; charset=utf-8')
    or (length(given) <= 255 and case
        when translate(given, 'abcdefghijklmnopqrstuvwxyz-.+ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_!#$%&''*^`|~', '') = '/'
        then given not like '/%' and given not like '%/'
        else given collate "C" ~ (
            '^[!#$%&''*+.^_`|~0-9A-Za-z-]+/[!#$%&''*+.^_`|~0-9A-Za-z-]+'
            || '(?: *;(?: *[!#$%&''*+.^_`|~0-9A-Za-z-]+=(?:[!#$%&''*+.^_`|~0-9A-Za-z-]+|"(?:[ !#-\[\]-~]|\\[ -~])*"))?)*$')
        end);
