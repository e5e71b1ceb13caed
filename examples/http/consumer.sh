#!/bin/sh
# A consumer with nothing but curl and jq: pops a job, does it, acks it, until COUNT are done.
#
#   postbus up                                                     # in another terminal
#   curl -d '{"payload": {"n": 1}}' http://127.0.0.1:8472/v1/topics/jobs/messages
#   COUNT=1 examples/http/consumer.sh
set -eu
url=${POSTBUS_URL:-http://127.0.0.1:8472}
left=${COUNT:-1}

call() {        # PATH BODY
    curl --silent --show-error --fail-with-body --header "authorization: Bearer ${POSTBUS_TOKEN:-none}" \
        --header "content-type: application/json" --data "$2" "$url$1"
}

while [ "$left" -gt 0 ]; do
    popped=$(call /v1/topics/jobs/pop '{"wait": 20, "lease": "30s"}')
    [ "$(echo "$popped" | jq '.messages | length')" -gt 0 ] || continue

    # The work. If it fails, the message is tried again later.
    if n=$(echo "$popped" | jq --exit-status '.messages[0].payload.n'); then
        echo "job $n"
        call /v1/ack "$popped" >/dev/null               # the answer to a pop settles its messages
        left=$((left - 1))
    else
        echo "not a job" >&2
        call /v1/dead-letter "$(echo "$popped" | jq '. + {reason: "it has no n"}')" >/dev/null
    fi
done
