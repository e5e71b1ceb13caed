-- Nothing changes here.
select 1;
