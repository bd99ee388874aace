#!/bin/sh
# Kafka's own kafka-topics, from the jars of scripts/setup-clients; librdkafka's tests start it by this name.
exec java -cp "$(dirname "$0")/../../../.cache/kafka/lib/*" org.apache.kafka.tools.TopicCommand "$@"
