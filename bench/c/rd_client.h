/* What the librdkafka workloads share: settings, handles, the topic, and where its partitions begin and end. */
#ifndef RD_CLIENT_H
#define RD_CLIENT_H

#include <librdkafka/rdkafka.h>
#include <stdint.h>

/* Every option of every workload; the same settings reach every system. */
struct settings {
    const char *bootstrap;
    const char *topic;
    const char *acks;
    const char *codec;
    /* Further properties of librdkafka as NAME=VALUE,NAME=VALUE, set last; NULL where there are none. */
    const char *producer;
    const char *consumer;
    /* Of a group: eager, cooperative or consumer; and kill, join or restart. */
    const char *protocol;
    const char *event;
    int64_t members;
    int64_t session_ms;
    int64_t heartbeat_ms;
    int64_t partitions;
    int64_t count;
    int64_t size;
    /* 0 leaves it to librdkafka. */
    int64_t batch_bytes;
    /* -1 leaves it to librdkafka. */
    int64_t linger_ms;
    /* 0 leaves it to librdkafka. */
    int64_t in_flight;
    int64_t fetch_max_bytes;
    int64_t rate;
    int64_t consumers;
    double max_seconds;
    double warmup_seconds;
    int one_message;
    int from_beginning;
};

/* Without progress for this long a run has failed. */
#define STALL_SECONDS 30
#define ADMIN_TIMEOUT_MS 30000

/* Common to producers and consumers: bootstrap, sockets, and failing when no broker can be reached. */
rd_kafka_conf_t *client_conf(const struct settings *settings);
void client_set(rd_kafka_conf_t *conf, const char *name, const char *value);
void client_set_count(rd_kafka_conf_t *conf, const char *name, int64_t value);
/* Properties as NAME=VALUE,NAME=VALUE; NULL sets nothing. */
void client_set_all(rd_kafka_conf_t *conf, const char *properties);

/* Takes over the conf. */
rd_kafka_t *client_new(rd_kafka_type_t type, rd_kafka_conf_t *conf);

/* Creates the topic unless it exists, then waits until every partition has a leader that this handle knows. */
void client_ensure_topic(rd_kafka_t *handle, const struct settings *settings);
void client_wait_for_leaders(rd_kafka_t *handle, const struct settings *settings);

/* The workloads. */
int run_produce(const struct settings *settings);
int run_consume(const struct settings *settings);
int run_latency(const struct settings *settings);
int run_tail(const struct settings *settings);
int run_group(const struct settings *settings);

#endif
