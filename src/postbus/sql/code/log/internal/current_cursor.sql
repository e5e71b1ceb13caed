-- The cursor of each group in each of its lanes: the last row of the ledger.
create or replace view postbus.current_cursor as
select l.subscription_id, l.lane, last.number, last.cursor, last.passed, last.at, last.handed_out
  from postbus.lane l
 cross join lateral (select c.* from postbus.cursor c
                      where c.subscription_id = l.subscription_id and c.lane = l.lane order by c.number desc limit 1) as last;
