-- What in our schemas, or called by it, belongs to somebody whose rights the user does not have: calling it would run that one's code
-- with the user's rights. Trusted are the user, the roles whose rights it has by membership, and superusers. Of superusers only
-- memberships that somebody granted count.
--
-- {is_client} is true for those that only call the schema: they look at its functions and relations, and trust the schema's owner,
-- unless they are superusers or own the database. Names are qualified although the search path is pinned.
with recursive trusted as (
    select r.oid from pg_catalog.pg_roles r where r.rolname = current_user
    union
    select m.roleid
      from trusted t
      join pg_catalog.pg_auth_members m on m.member = t.oid
      join pg_catalog.pg_roles r on r.oid = m.member
     where coalesce((pg_catalog.to_jsonb(m) ->> 'inherit_option')::boolean, r.rolinherit)      -- since PostgreSQL 16 of each membership
), schema as (
    select n.oid, n.nspname as name, n.nspowner as owner from pg_catalog.pg_namespace n where n.nspname in ('postbus', 'postbus_outbox', 'postbus_topics')
), client as (
    select 1 from pg_catalog.pg_roles r cross join pg_catalog.pg_database d
     where {is_client} and r.rolname = current_user and not r.rolsuper and d.datname = pg_catalog.current_database()
       and not exists (select from trusted t where t.oid = d.datdba)
), stranger as (
    select r.oid, r.rolname as name from pg_catalog.pg_roles r
     where not r.rolsuper
       and r.oid not in (select t.oid from trusted t)
       and not (r.rolname = 'pg_database_owner'
                and exists (select from pg_catalog.pg_database d join pg_catalog.pg_roles o on o.oid = d.datdba
                             where d.datname = pg_catalog.current_database() and (o.rolsuper or o.oid in (select t.oid from trusted t))))
       and not (exists (select from client) and r.oid in (select s.owner from schema s where s.name = 'postbus'))
), thing as (
    select 1 as rank, 'pg_namespace'::regclass as kind, s.oid as object, s.owner, null::text as what from schema s
    union all
    select 2, 'pg_proc'::regclass, f.oid, f.proowner, null from schema s join pg_catalog.pg_proc f on f.pronamespace = s.oid
    union all
    select 3, 'pg_class'::regclass, c.oid, c.relowner, null
      from schema s join pg_catalog.pg_class c on c.relnamespace = s.oid and c.relkind not in ('i', 'I', 't', 'c')
    union all
    select 4, 'pg_type'::regclass, y.oid, y.typowner, null
      from schema s join pg_catalog.pg_type y on y.typnamespace = s.oid
      left join pg_catalog.pg_class c on c.oid = y.typrelid
     where y.typcategory <> 'A' and (c.oid is null or c.relkind = 'c')
    union all
    select 5, 'pg_operator'::regclass, o.oid, o.oprowner, null from schema s join pg_catalog.pg_operator o on o.oprnamespace = s.oid
    union all
    -- What is called by a trigger, rule, default, constraint, policy, index or view of ours.
    select 6, 'pg_proc'::regclass, f.oid, f.proowner,
           pg_catalog.format('function %s, which is called by %s,', f.oid::regprocedure, pg_catalog.pg_describe_object(d.classid, d.objid, d.objsubid))
      from stranger r
      join pg_catalog.pg_proc f on f.proowner = r.oid
      join pg_catalog.pg_depend d on d.refclassid = 'pg_proc'::regclass and d.refobjid = f.oid
      left join pg_catalog.pg_trigger tg on d.classid = 'pg_trigger'::regclass and tg.oid = d.objid
      left join pg_catalog.pg_rewrite rw on d.classid = 'pg_rewrite'::regclass and rw.oid = d.objid
      left join pg_catalog.pg_attrdef ad on d.classid = 'pg_attrdef'::regclass and ad.oid = d.objid
      left join pg_catalog.pg_constraint co on d.classid = 'pg_constraint'::regclass and co.oid = d.objid
      left join pg_catalog.pg_policy po on d.classid = 'pg_policy'::regclass and po.oid = d.objid
      join pg_catalog.pg_class c
        on c.oid = coalesce(tg.tgrelid, rw.ev_class, ad.adrelid, co.conrelid, po.polrelid,
                            case when d.classid = 'pg_class'::regclass then d.objid end)
      join schema s on s.oid = c.relnamespace
     where not {is_client}
    union all
    select 7, 'pg_proc'::regclass, f.oid, f.proowner,
           pg_catalog.format('function %s, which is called by event trigger %I,', f.oid::regprocedure, e.evtname)
      from pg_catalog.pg_event_trigger e join pg_catalog.pg_proc f on f.oid = e.evtfoid
      join pg_catalog.pg_roles r on r.rolname = current_user
     -- Whoever may make event triggers without being a superuser is an administrator of a managed server.
     where not {is_client} and e.evtenabled <> 'D' and (r.rolsuper or f.proowner <> e.evtowner)
)
select coalesce(one.what, pg_catalog.concat_ws(' ', known.type, known.identity)) as what, stranger.name as owner, current_user as "user",
       case when one.kind = 'pg_namespace'::regclass then pg_catalog.format('drop schema %s cascade', known.identity)
            else pg_catalog.format('drop %s %s', known.type, known.identity) end as removal
  from thing one
  join stranger on stranger.oid = one.owner
 cross join lateral pg_catalog.pg_identify_object(one.kind, one.object, 0) as known
 order by one.rank, what
 limit 1
