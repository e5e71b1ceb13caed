"""Questions that people ask a fan-out outbox, word for word as guides to one have them."""

from __future__ import annotations

EMAIL_STATUS = """
   SELECT subscription_status
   FROM outbox_topic_subscriptions
   WHERE topic = 'orders.events' AND group_name = 'email-service';
"""
EMAIL_START = """
   SELECT start_from_message_id, start_from_timestamp
   FROM outbox_topic_subscriptions
   WHERE topic = 'orders.events' AND group_name = 'email-service';
"""
EMAIL_PROCESSED = """
   SELECT COUNT(*)
   FROM outbox_consumer_groups
   WHERE group_name = 'email-service' AND status = 'COMPLETED';
"""
NOT_COMPLETED = """
   SELECT message_id, group_name, status
   FROM outbox_consumer_groups
   WHERE status != 'COMPLETED'
   ORDER BY message_id DESC
   LIMIT 100;
"""
CLEANUP = """
   SELECT cleanup_completed_outbox_messages();
"""
RETENTION = """
   SELECT topic, message_retention_hours
   FROM outbox_topics
   WHERE topic = 'orders.events';
"""
EMAIL_HEARTBEAT = """
   SELECT last_heartbeat_at, NOW() - last_heartbeat_at AS time_since_heartbeat
   FROM outbox_topic_subscriptions
   WHERE topic = 'orders.events' AND group_name = 'email-service';
"""
ACTIVE_COUNT = """
   SELECT COUNT(*)
   FROM outbox_topic_subscriptions
   WHERE topic = 'orders.events' AND subscription_status = 'ACTIVE';
"""
GROUP_STATES = """
   SELECT group_name, subscription_status
   FROM outbox_topic_subscriptions
   WHERE topic = 'orders.events';
"""
LAG = """
   SELECT
       s.topic,
       s.group_name,
       COUNT(CASE WHEN cg.status IS NULL THEN 1 END) AS pending_messages,
       COUNT(CASE WHEN cg.status = 'COMPLETED' THEN 1 END) AS completed_messages,
       COUNT(CASE WHEN cg.status = 'FAILED' THEN 1 END) AS failed_messages
   FROM outbox_topic_subscriptions s
   CROSS JOIN outbox o
   LEFT JOIN outbox_consumer_groups cg
       ON cg.message_id = o.id AND cg.group_name = s.group_name
   WHERE s.subscription_status = 'ACTIVE'
     AND o.topic = s.topic
     AND o.id >= COALESCE(s.start_from_message_id, 0)
   GROUP BY s.topic, s.group_name;
"""
HEALTH = """
   SELECT
       topic,
       group_name,
       subscription_status,
       last_heartbeat_at,
       NOW() - last_heartbeat_at AS heartbeat_age
   FROM outbox_topic_subscriptions
   ORDER BY topic, group_name;
"""
COMPLETION = """
   SELECT
       o.topic,
       COUNT(*) AS total_messages,
       AVG(o.completed_consumer_groups::FLOAT / NULLIF(o.required_consumer_groups, 0)) AS avg_completion_rate,
       COUNT(CASE WHEN o.status = 'COMPLETED' THEN 1 END) AS fully_completed
   FROM outbox o
   WHERE o.created_at > NOW() - INTERVAL '1 hour'
   GROUP BY o.topic;
"""
ZERO_SUBSCRIPTIONS = """
   SELECT
       topic,
       COUNT(*) AS zero_subscription_messages,
       MIN(created_at) AS oldest_message
   FROM outbox
   WHERE required_consumer_groups = 0
     AND status != 'COMPLETED'
   GROUP BY topic;
"""
RECEIVING = """
   SELECT group_name, COUNT(*) AS completed_count
   FROM outbox_consumer_groups
   WHERE message_id IN (
       SELECT id FROM outbox WHERE topic = 'orders.events' AND created_at > NOW() - INTERVAL '1 hour'
   )
   GROUP BY group_name;
"""
NEAR_TIMEOUT = """
            SELECT topic, group_name,
                   EXTRACT(EPOCH FROM (NOW() - last_heartbeat_at)) AS seconds_since_heartbeat,
                   heartbeat_timeout_seconds
            FROM outbox_topic_subscriptions
            WHERE subscription_status = 'ACTIVE'
              AND last_heartbeat_at < NOW() - (heartbeat_timeout_seconds * 0.8 || ' seconds')::INTERVAL
"""
STUCK = """
            SELECT topic, COUNT(*) as stuck_count,
                   MIN(created_at) as oldest_message,
                   EXTRACT(EPOCH FROM (NOW() - MIN(created_at))) / 3600 AS hours_stuck
            FROM outbox
            WHERE status IN ('PENDING', 'PROCESSING')
              AND completed_consumer_groups < required_consumer_groups
              AND created_at < NOW() - INTERVAL '1 hour'
            GROUP BY topic
            HAVING COUNT(*) > 100  -- Alert threshold
"""
BACKFILL = """
SELECT topic, group_name, backfill_status,
       backfill_processed_messages, backfill_total_messages,
       ROUND(100.0 * backfill_processed_messages / NULLIF(backfill_total_messages, 0), 2) AS progress_pct,
       backfill_started_at,
       EXTRACT(EPOCH FROM (NOW() - backfill_started_at)) AS elapsed_seconds,
       ROUND(backfill_processed_messages / NULLIF(EXTRACT(EPOCH FROM (NOW() - backfill_started_at)), 0), 0)
           AS messages_per_second
FROM outbox_topic_subscriptions
WHERE backfill_status = 'IN_PROGRESS';
"""
INCONSISTENT = """
            SELECT o.topic, COUNT(*) as inconsistent_count
            FROM outbox o
            INNER JOIN outbox_topics t ON t.topic = o.topic
            WHERE t.semantics = 'PUB_SUB'
              AND o.status IN ('PENDING', 'PROCESSING')
              AND o.required_consumer_groups != (
                  SELECT COUNT(*)
                  FROM outbox_topic_subscriptions s
                  WHERE s.topic = o.topic
                    AND s.subscription_status = 'ACTIVE'
              )
            GROUP BY o.topic
"""
ORPHANED = """
SELECT s.topic, s.group_name, s.subscription_status,
       s.last_heartbeat_at,
       COUNT(o.id) as pending_messages
FROM outbox_topic_subscriptions s
LEFT JOIN outbox o ON o.topic = s.topic
    AND o.status IN ('PENDING', 'PROCESSING')
    AND NOT EXISTS (
        SELECT 1 FROM outbox_consumer_groups cg
        WHERE cg.message_id = o.id AND cg.group_name = s.group_name
    )
WHERE s.subscription_status = 'ACTIVE'
GROUP BY s.topic, s.group_name, s.subscription_status, s.last_heartbeat_at
HAVING COUNT(o.id) = 0
    AND s.last_heartbeat_at < NOW() - INTERVAL '7 days';
"""
