#include "rd_client.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "measure.h"

#define TURN_MS 100

static void on_error(rd_kafka_t *handle, int code, const char *reason, void *opaque) {
    (void)handle;
    (void)opaque;
    if (code == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN || code == RD_KAFKA_RESP_ERR__FATAL)
        fail("%s: %s", rd_kafka_err2name((rd_kafka_resp_err_t)code), reason);
    fprintf(stderr, "%s: %s\n", program_name, reason);
}

void client_set(rd_kafka_conf_t *conf, const char *name, const char *value) {
    char reason[512];
    if (rd_kafka_conf_set(conf, name, value, reason, sizeof reason) != RD_KAFKA_CONF_OK)
        fail("%s=%s: %s", name, value, reason);
}

void client_set_count(rd_kafka_conf_t *conf, const char *name, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, value);
    client_set(conf, name, text);
}

void client_set_all(rd_kafka_conf_t *conf, const char *properties) {
    char pair[256];
    for (const char *rest = properties; rest && *rest;) {
        size_t length = strcspn(rest, ",");
        if (length >= sizeof pair)
            fail("'%s' is longer than a property can be", rest);
        memcpy(pair, rest, length);
        pair[length] = '\0';
        char *value = strchr(pair, '=');
        if (!value)
            fail("'%s' is not NAME=VALUE", pair);
        *value++ = '\0';
        client_set(conf, pair, value);
        rest += length + (rest[length] == ',');
    }
}

rd_kafka_conf_t *client_conf(const struct settings *settings) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    client_set(conf, "bootstrap.servers", settings->bootstrap);
    client_set(conf, "client.id", "rdbench");
    /* A name with both an IPv4 and an IPv6 address costs a refused connection first. */
    client_set(conf, "broker.address.family", "v4");
    client_set(conf, "socket.nagle.disable", "true");
    client_set(conf, "allow.auto.create.topics", "false");
    rd_kafka_conf_set_error_cb(conf, on_error);
    return conf;
}

rd_kafka_t *client_new(rd_kafka_type_t type, rd_kafka_conf_t *conf) {
    char reason[512];
    rd_kafka_t *handle = rd_kafka_new(type, conf, reason, sizeof reason);
    if (!handle)
        fail("cannot make a client: %s", reason);
    return handle;
}

static void create_topic(rd_kafka_t *handle, const struct settings *settings) {
    char reason[512];
    rd_kafka_NewTopic_t *topic =
        rd_kafka_NewTopic_new(settings->topic, (int)settings->partitions, 1, reason, sizeof reason);
    if (!topic)
        fail("cannot ask for topic %s: %s", settings->topic, reason);
    rd_kafka_AdminOptions_t *options = rd_kafka_AdminOptions_new(handle, RD_KAFKA_ADMIN_OP_CREATETOPICS);
    rd_kafka_AdminOptions_set_request_timeout(options, ADMIN_TIMEOUT_MS, reason, sizeof reason);
    rd_kafka_queue_t *answers = rd_kafka_queue_new(handle);
    rd_kafka_CreateTopics(handle, &topic, 1, options, answers);
    rd_kafka_event_t *event = NULL;
    /* In short turns: only rd_kafka_poll hears that no broker can be reached. */
    for (int waited_ms = 0; !event; waited_ms += TURN_MS) {
        if (waited_ms > ADMIN_TIMEOUT_MS)
            fail("no answer to the request for topic %s", settings->topic);
        event = rd_kafka_queue_poll(answers, TURN_MS);
        rd_kafka_poll(handle, 0);
    }
    if (rd_kafka_event_error(event))
        fail("topic %s was not created: %s", settings->topic, rd_kafka_event_error_string(event));
    size_t count = 0;
    const rd_kafka_topic_result_t **results =
        rd_kafka_CreateTopics_result_topics(rd_kafka_event_CreateTopics_result(event), &count);
    for (size_t i = 0; i < count; i++) {
        rd_kafka_resp_err_t error = rd_kafka_topic_result_error(results[i]);
        if (error && error != RD_KAFKA_RESP_ERR_TOPIC_ALREADY_EXISTS)
            fail("topic %s was not created: %s", settings->topic, rd_kafka_err2str(error));
    }
    rd_kafka_event_destroy(event);
    rd_kafka_queue_destroy(answers);
    rd_kafka_AdminOptions_destroy(options);
    rd_kafka_NewTopic_destroy(topic);
}

/* Nonzero when every partition has a leader; a topic of another size is a failure, not a wait. */
static int leaders_are_known(const struct rd_kafka_metadata *metadata, const struct settings *settings) {
    if (metadata->topic_cnt != 1 || metadata->topics[0].err || metadata->topics[0].partition_cnt == 0)
        return 0;
    const struct rd_kafka_metadata_topic *topic = &metadata->topics[0];
    if (topic->partition_cnt != settings->partitions)
        fail("topic %s has %d partitions, not %" PRId64, settings->topic, topic->partition_cnt,
             settings->partitions);
    for (int i = 0; i < topic->partition_cnt; i++)
        if (topic->partitions[i].err || topic->partitions[i].leader < 0)
            return 0;
    return 1;
}

void client_wait_for_leaders(rd_kafka_t *handle, const struct settings *settings) {
    rd_kafka_topic_t *topic = rd_kafka_topic_new(handle, settings->topic, NULL);
    if (!topic)
        fail("topic %s: %s", settings->topic, rd_kafka_err2str(rd_kafka_last_error()));
    uint64_t deadline = monotonic_ns() + STALL_SECONDS * NANOSECONDS;
    int known = 0;
    while (!known) {
        const struct rd_kafka_metadata *metadata;
        rd_kafka_resp_err_t error = rd_kafka_metadata(handle, 0, topic, &metadata, 1000);
        if (!error) {
            known = leaders_are_known(metadata, settings);
            rd_kafka_metadata_destroy(metadata);
        }
        if (!known && monotonic_ns() > deadline)
            fail("topic %s has no leader for every partition after %d s: %s", settings->topic, STALL_SECONDS,
                 rd_kafka_err2str(error));
        if (!known) {
            struct timespec pause = {.tv_nsec = 20000000};
            nanosleep(&pause, NULL);
            rd_kafka_poll(handle, 0);
        }
    }
    rd_kafka_topic_destroy(topic);
}

void client_ensure_topic(rd_kafka_t *handle, const struct settings *settings) {
    create_topic(handle, settings);
    client_wait_for_leaders(handle, settings);
}
