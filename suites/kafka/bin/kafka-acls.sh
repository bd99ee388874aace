#!/bin/sh
# Kafka's own kafka-acls, from the jars that scripts/setup-clients brings; librdkafka's tests start it by this name.
exec java -cp "$(dirname "$0")/../../../.cache/kafka/lib/*" org.apache.kafka.tools.AclCommand "$@"
