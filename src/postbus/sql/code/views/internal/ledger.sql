-- The known positions of groups over time: receipts of folded rows, and the ledger itself.
create or replace view postbus.ledger as
select r.subscription_id, r.lane, r.number, r.cursor, r.at, r.worker, r.moved from postbus.receipt r where r.number is not null
 union all
select c.subscription_id, c.lane, c.number, c.cursor, c.at, c.worker, c.moved from postbus.cursor c;
