#include "rd_consume.h"

#include <inttypes.h>
#include <stdlib.h>

#include "measure.h"

struct consumer {
    const struct settings *settings;
    rd_kafka_t *handle;
    rd_kafka_topic_t *topic;
    rd_kafka_queue_t *queue;
    /* For each partition: what the next message must contain. */
    int64_t *next_offsets;
    message_callback *callback;
    void *opaque;
};

static rd_kafka_conf_t *consumer_conf(const struct settings *settings) {
    rd_kafka_conf_t *conf = client_conf(settings);
    client_set(conf, "fetch.wait.max.ms", "100");
    client_set(conf, "fetch.min.bytes", "1");
    client_set(conf, "queued.min.messages", "1000000");
    client_set(conf, "enable.partition.eof", "false");
    if (settings->fetch_max_bytes) {
        client_set_count(conf, "fetch.message.max.bytes", settings->fetch_max_bytes);
        /* librdkafka wants room for its largest message in what it fetches at once. */
        if (settings->fetch_max_bytes < 1000000)
            client_set_count(conf, "message.max.bytes", settings->fetch_max_bytes < 1000 ? 1000
                                                                                         : settings->fetch_max_bytes);
        client_set_count(conf, "fetch.max.bytes", settings->fetch_max_bytes < 1000 ? 1000
                                                                                   : settings->fetch_max_bytes);
    }
    client_set_all(conf, settings->consumer);
    return conf;
}

struct consumer *consumer_new(const struct settings *settings, int from_beginning, message_callback *callback,
                              void *opaque) {
    struct consumer *consumer = allocate(1, sizeof *consumer);
    consumer->settings = settings;
    consumer->callback = callback;
    consumer->opaque = opaque;
    consumer->handle = client_new(RD_KAFKA_CONSUMER, consumer_conf(settings));
    client_wait_for_leaders(consumer->handle, settings);
    consumer->topic = rd_kafka_topic_new(consumer->handle, settings->topic, NULL);
    if (!consumer->topic)
        fail("topic %s: %s", settings->topic, rd_kafka_err2str(rd_kafka_last_error()));
    consumer->queue = rd_kafka_queue_new(consumer->handle);
    consumer->next_offsets = allocate((size_t)settings->partitions, sizeof *consumer->next_offsets);
    for (int32_t i = 0; i < settings->partitions; i++) {
        int64_t low, high;
        rd_kafka_resp_err_t error =
            rd_kafka_query_watermark_offsets(consumer->handle, settings->topic, i, &low, &high, ADMIN_TIMEOUT_MS);
        if (error)
            fail("no offsets of partition %" PRId32 ": %s", i, rd_kafka_err2str(error));
        consumer->next_offsets[i] = from_beginning ? low : high;
    }
    return consumer;
}

void consumer_start(struct consumer *consumer) {
    for (int32_t i = 0; i < consumer->settings->partitions; i++)
        if (rd_kafka_consume_start_queue(consumer->topic, i, consumer->next_offsets[i], consumer->queue))
            fail("cannot read partition %" PRId32 ": %s", i, rd_kafka_err2str(rd_kafka_last_error()));
}

static void on_message(rd_kafka_message_t *message, void *opaque) {
    struct consumer *consumer = opaque;
    if (message->err)
        fail("reading partition %" PRId32 ": %s", message->partition, rd_kafka_message_errstr(message));
    int64_t *expected = &consumer->next_offsets[message->partition];
    if (message->offset != *expected)
        fail("partition %" PRId32 " gave offset %" PRId64 " after %" PRId64, message->partition, message->offset,
             *expected - 1);
    *expected = message->offset + 1;
    consumer->callback(message, consumer->opaque);
}

void consumer_poll(struct consumer *consumer, int timeout_ms) {
    /* Connection errors arrive in the main queue, records in the other. */
    rd_kafka_poll(consumer->handle, 0);
    rd_kafka_consume_callback_queue(consumer->queue, timeout_ms, on_message, consumer);
}

void consumer_yield(struct consumer *consumer) {
    rd_kafka_yield(consumer->handle);
}

void consumer_destroy(struct consumer *consumer) {
    for (int32_t i = 0; i < consumer->settings->partitions; i++)
        rd_kafka_consume_stop(consumer->topic, i);
    rd_kafka_queue_destroy(consumer->queue);
    rd_kafka_topic_destroy(consumer->topic);
    rd_kafka_destroy(consumer->handle);
    free(consumer->next_offsets);
    free(consumer);
}

void tally_message(const rd_kafka_message_t *message, void *opaque) {
    struct tally *tally = opaque;
    /* What librdkafka had fetched beyond the target. */
    if (tally->messages == tally->target)
        return;
    if (tally->messages == 0)
        tally->first_message_ns = monotonic_ns();
    if (tally->message_bytes && message->len != tally->message_bytes)
        fail("offset %" PRId64 " of partition %" PRId32 " has %zu bytes, not %" PRIu64, message->offset,
             message->partition, message->len, tally->message_bytes);
    tally->bytes += message->len;
    if (++tally->messages == tally->target) {
        tally->last_message_ns = monotonic_ns();
        consumer_yield(tally->consumer);
    }
}

void tally_run(struct tally *tally, double max_seconds) {
    uint64_t limit_ns = (uint64_t)(max_seconds * (double)NANOSECONDS);
    uint64_t seen = 0;
    uint64_t progress_ns = tally->started_ns;
    while (tally->messages < tally->target) {
        consumer_poll(tally->consumer, 100);
        uint64_t now = monotonic_ns();
        if (tally->messages > seen) {
            seen = tally->messages;
            progress_ns = now;
            tally->last_message_ns = seen == tally->target ? tally->last_message_ns : now;
        }
        if (limit_ns && now - tally->started_ns > limit_ns)
            return;
        if (now - progress_ns > STALL_SECONDS * NANOSECONDS)
            fail("no message for %d s, after %" PRIu64 " of %" PRIu64, STALL_SECONDS, tally->messages,
                 tally->target);
    }
}

int run_consume(const struct settings *settings) {
    struct tally tally = {.target = (uint64_t)settings->count, .message_bytes = (uint64_t)settings->size};
    tally.consumer = consumer_new(settings, settings->from_beginning, tally_message, &tally);
    double cpu_before = cpu_seconds();
    tally.started_ns = monotonic_ns();
    consumer_start(tally.consumer);
    tally_run(&tally, settings->max_seconds);
    double cpu_used = cpu_seconds() - cpu_before;
    if (tally.messages == 0)
        fail("no message within %.1f s", settings->max_seconds);
    json_begin();
    json_throughput(tally.messages, tally.bytes, seconds_between(tally.started_ns, tally.last_message_ns));
    json_number("first_message_s", seconds_between(tally.started_ns, tally.first_message_ns));
    json_number("client_cpu_s", cpu_used);
    json_flag("complete", tally.messages == tally.target);
    json_end();
    consumer_destroy(tally.consumer);
    return 0;
}
