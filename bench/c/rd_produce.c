/* Messages go to the partitions in turn, one by one: the same spread for every system and run. */
#include "rd_produce.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PRODUCE_API_KEY 0
/* Sent by one call of librdkafka. */
#define CHUNK_MESSAGES 500
#define QUEUE_MESSAGES 200000
#define ONE_MESSAGE_QUEUE_MESSAGES 10000

static rd_kafka_resp_err_t on_request_sent(rd_kafka_t *handle, int socket, const char *broker, int32_t broker_id,
                                           int16_t api_key, int16_t version, int32_t correlation_id, size_t size,
                                           void *opaque) {
    (void)handle, (void)socket, (void)broker, (void)broker_id, (void)version, (void)correlation_id, (void)size;
    struct producer *producer = opaque;
    if (api_key == PRODUCE_API_KEY)
        atomic_fetch_add_explicit(&producer->requests, 1, memory_order_relaxed);
    return RD_KAFKA_RESP_ERR_NO_ERROR;
}

static rd_kafka_resp_err_t on_response_received(rd_kafka_t *handle, int socket, const char *broker,
                                                int32_t broker_id, int16_t api_key, int16_t version,
                                                int32_t correlation_id, size_t size, int64_t round_trip_us,
                                                rd_kafka_resp_err_t error, void *opaque) {
    (void)handle, (void)socket, (void)broker, (void)broker_id, (void)version, (void)correlation_id, (void)size;
    struct producer *producer = opaque;
    if (api_key == PRODUCE_API_KEY && !error && round_trip_us >= 0 && producer->round_trips_ns) {
        uint64_t place = atomic_fetch_add_explicit(&producer->round_trip_count, 1, memory_order_relaxed);
        if (place < (uint64_t)producer->settings->count)
            producer->round_trips_ns[place] = (uint64_t)round_trip_us * 1000;
    }
    return RD_KAFKA_RESP_ERR_NO_ERROR;
}

static rd_kafka_resp_err_t on_new(rd_kafka_t *handle, const rd_kafka_conf_t *conf, void *opaque, char *reason,
                                  size_t reason_size) {
    (void)conf, (void)reason, (void)reason_size;
    rd_kafka_resp_err_t error =
        rd_kafka_interceptor_add_on_request_sent(handle, "requests", on_request_sent, opaque);
    return error ? error
                 : rd_kafka_interceptor_add_on_response_received(handle, "round-trips", on_response_received, opaque);
}

static void on_delivery(rd_kafka_t *handle, const rd_kafka_message_t *message, void *opaque) {
    (void)handle;
    struct producer *producer = opaque;
    if (message->err)
        fail("a message to partition %" PRId32 " was not delivered: %s", message->partition,
             rd_kafka_err2str(message->err));
    producer->acknowledged++;
}

static rd_kafka_conf_t *producer_conf(const struct settings *settings) {
    rd_kafka_conf_t *conf = client_conf(settings);
    client_set(conf, "acks", settings->acks);
    client_set(conf, "compression.codec", settings->codec);
    client_set(conf, "message.timeout.ms", "60000");
    client_set_count(conf, "queue.buffering.max.messages",
                     settings->one_message ? ONE_MESSAGE_QUEUE_MESSAGES : QUEUE_MESSAGES);
    if (settings->one_message) {
        client_set(conf, "batch.num.messages", "1");
        client_set(conf, "linger.ms", "0");
    } else {
        if (settings->batch_bytes) {
            client_set_count(conf, "batch.size", settings->batch_bytes);
            /* Only the number of bytes ends a batch. */
            client_set(conf, "batch.num.messages", "1000000");
        }
        if (settings->linger_ms >= 0)
            client_set_count(conf, "linger.ms", settings->linger_ms);
    }
    if (settings->in_flight)
        client_set_count(conf, "max.in.flight", settings->in_flight);
    if (settings->size > 900000)
        client_set_count(conf, "message.max.bytes", settings->size + 100000);
    client_set_all(conf, settings->producer);
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    return conf;
}

struct producer *producer_new(const struct settings *settings) {
    struct producer *producer = allocate(1, sizeof *producer);
    producer->settings = settings;
    producer->pool = payload_pool_new((size_t)settings->size, strcmp(settings->codec, "none") == 0
                                                                  ? PAYLOAD_INCOMPRESSIBLE
                                                                  : PAYLOAD_HALF_COMPRESSIBLE);
    if (settings->one_message)
        producer->round_trips_ns = allocate((size_t)settings->count, sizeof *producer->round_trips_ns);
    rd_kafka_conf_t *conf = producer_conf(settings);
    rd_kafka_conf_set_opaque(conf, producer);
    rd_kafka_conf_interceptor_add_on_new(conf, "measure", on_new, producer);
    producer->handle = client_new(RD_KAFKA_PRODUCER, conf);
    client_ensure_topic(producer->handle, settings);
    producer->topic = rd_kafka_topic_new(producer->handle, settings->topic, NULL);
    if (!producer->topic)
        fail("topic %s: %s", settings->topic, rd_kafka_err2str(rd_kafka_last_error()));
    return producer;
}

/* Serves delivery reports and fails when there were none for too long. */
static void await_acknowledgements(struct producer *producer) {
    uint64_t before = producer->acknowledged;
    uint64_t deadline = monotonic_ns() + STALL_SECONDS * NANOSECONDS;
    while (producer->acknowledged == before) {
        rd_kafka_poll(producer->handle, 100);
        if (monotonic_ns() > deadline)
            fail("no acknowledgement for %d s", STALL_SECONDS);
    }
}

static void send_chunk(struct producer *producer, int count) {
    const struct settings *settings = producer->settings;
    rd_kafka_message_t messages[CHUNK_MESSAGES];
    memset(messages, 0, sizeof messages);
    for (int i = 0; i < count; i++) {
        uint64_t number = producer->sent + (uint64_t)i;
        messages[i].payload = payload_at(&producer->pool, number);
        messages[i].len = (size_t)settings->size;
        messages[i].partition = (int32_t)(number % (uint64_t)settings->partitions);
    }
    producer->sent += (uint64_t)count;
    for (;;) {
        /* Neither copied nor freed: the pool outlives every message. */
        int accepted = rd_kafka_produce_batch(producer->topic, RD_KAFKA_PARTITION_UA, RD_KAFKA_MSG_F_PARTITION,
                                              messages, count);
        if (accepted == count)
            return;
        int left = 0;
        for (int i = 0; i < count; i++) {
            if (!messages[i].err)
                continue;
            if (messages[i].err != RD_KAFKA_RESP_ERR__QUEUE_FULL)
                fail("a message was refused: %s", rd_kafka_err2str(messages[i].err));
            messages[left] = messages[i];
            messages[left++].err = RD_KAFKA_RESP_ERR_NO_ERROR;
        }
        count = left;
        await_acknowledgements(producer);
    }
}

void producer_run(struct producer *producer) {
    const struct settings *settings = producer->settings;
    uint64_t count = (uint64_t)settings->count;
    producer->first_send_ns = monotonic_ns();
    uint64_t limit_ns = (uint64_t)(settings->max_seconds * (double)NANOSECONDS);
    while (producer->sent < count) {
        uint64_t left = count - producer->sent;
        send_chunk(producer, left < CHUNK_MESSAGES ? (int)left : CHUNK_MESSAGES);
        rd_kafka_poll(producer->handle, 0);
        if (limit_ns && monotonic_ns() - producer->first_send_ns > limit_ns)
            break;
    }
    while (producer->acknowledged < producer->sent)
        await_acknowledgements(producer);
    producer->last_acknowledgement_ns = monotonic_ns();
}

void producer_destroy(struct producer *producer) {
    rd_kafka_topic_destroy(producer->topic);
    rd_kafka_destroy(producer->handle);
    free(producer->pool.bytes);
    free(producer->round_trips_ns);
    free(producer);
}

static void report_round_trips(struct producer *producer) {
    uint64_t count = atomic_load(&producer->round_trip_count);
    if (count > (uint64_t)producer->settings->count)
        count = (uint64_t)producer->settings->count;
    struct samples samples = {.values = producer->round_trips_ns, .count = count, .capacity = count};
    samples_sort(&samples);
    json_number("p50_ms", samples_percentile_ms(&samples, 50));
    json_number("p99_ms", samples_percentile_ms(&samples, 99));
}

int run_produce(const struct settings *settings) {
    struct producer *producer = producer_new(settings);
    double cpu_before = cpu_seconds();
    producer_run(producer);
    double cpu_used = cpu_seconds() - cpu_before;
    double seconds = seconds_between(producer->first_send_ns, producer->last_acknowledgement_ns);
    uint64_t requests = atomic_load(&producer->requests);
    if (settings->one_message && requests < producer->sent)
        fail("%" PRIu64 " messages went in %" PRIu64 " requests, not one each", producer->sent, requests);
    json_begin();
    json_throughput(producer->acknowledged, producer->acknowledged * (uint64_t)settings->size, seconds);
    json_count("requests", requests);
    json_number("requests_s", (double)requests / (seconds > 0.0 ? seconds : 1e-9));
    json_number("client_cpu_s", cpu_used);
    if (settings->one_message)
        report_round_trips(producer);
    json_text("spread", "round-robin");
    json_flag("complete", producer->acknowledged == (uint64_t)settings->count);
    json_end();
    producer_destroy(producer);
    return 0;
}
