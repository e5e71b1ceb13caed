-- The regular expression that a name, with a dot after it, matches if the pattern fits the name: * is one word, # any number of
-- them, also none. Other words are as they stand: they have no characters that mean something else here.
create or replace function postbus.pattern_regex(pattern text) returns text
language sql immutable parallel safe
return (select '^' || string_agg(case word.is when '*' then '[^.]*\.' when '#' then '([^.]*\.)*' else word.is || '\.' end, '' order by word.n) || '$'
          from unnest(string_to_array(pattern, '.')) with ordinality as word ("is", n));
