-- The regular expression for a pattern, which matches a name followed by a dot if the pattern fits the name: * is one word, # any
-- number of words or none. Other words stand for themselves: they have no characters with a meaning in regular expressions.
create or replace function postbus.pattern_regex(pattern text) returns text
language sql immutable parallel safe
return (select '^' || string_agg(case word.is when '*' then '[^.]*\.' when '#' then '([^.]*\.)*' else word.is || '\.' end, '' order by word.n) || '$'
          from unnest(string_to_array(pattern, '.')) with ordinality as word ("is", n));
