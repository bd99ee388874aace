/* End-to-end latency, open loop: each message has a time at which it should be sent, fixed beforehand and carried
 * in its payload. Whatever delays the sending counts as latency, so a stalled broker cannot slow its own test. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "measure.h"
#include "payload.h"
#include "rd_client.h"
#include "rd_consume.h"

/* At the head of each payload. */
struct stamp {
    uint64_t intended_ns;
    uint64_t number;
};

struct latency_run {
    const struct settings *settings;
    struct consumer *consumer;
    uint64_t measured_from_ns;
    uint64_t total;
    /* Written by the consumer's thread alone, then read after it was joined. */
    struct samples latencies;
    uint8_t *seen;
    atomic_uint_fast64_t received;
    atomic_int stop;
};

static void on_latency_message(const rd_kafka_message_t *message, void *opaque) {
    struct latency_run *run = opaque;
    uint64_t now = monotonic_ns();
    struct stamp stamp;
    if (message->len != (size_t)run->settings->size)
        fail("a message of %zu bytes arrived, not of %" PRId64, message->len, run->settings->size);
    memcpy(&stamp, message->payload, sizeof stamp);
    if (stamp.number >= run->total || run->seen[stamp.number])
        fail("message %" PRIu64 " of %" PRIu64 " arrived twice or was never sent", stamp.number, run->total);
    run->seen[stamp.number] = 1;
    if (stamp.intended_ns >= run->measured_from_ns)
        samples_add(&run->latencies, now > stamp.intended_ns ? now - stamp.intended_ns : 0);
    atomic_fetch_add_explicit(&run->received, 1, memory_order_release);
}

static void *consume_until_stopped(void *opaque) {
    struct latency_run *run = opaque;
    while (!atomic_load(&run->stop) && atomic_load(&run->received) < run->total)
        consumer_poll(run->consumer, 100);
    return NULL;
}

static void on_latency_delivery(rd_kafka_t *handle, const rd_kafka_message_t *message, void *opaque) {
    (void)handle, (void)opaque;
    if (message->err)
        fail("a message was not delivered: %s", rd_kafka_err2str(message->err));
}

static rd_kafka_t *latency_producer(const struct settings *settings) {
    rd_kafka_conf_t *conf = client_conf(settings);
    client_set(conf, "acks", settings->acks);
    client_set(conf, "linger.ms", "0");
    client_set(conf, "message.timeout.ms", "60000");
    /* The consumer counts the successes, so that the pacer is not delayed. */
    client_set(conf, "delivery.report.only.error", "true");
    client_set_all(conf, settings->producer);
    rd_kafka_conf_set_dr_msg_cb(conf, on_latency_delivery);
    rd_kafka_t *handle = client_new(RD_KAFKA_PRODUCER, conf);
    client_ensure_topic(handle, settings);
    return handle;
}

static void sleep_until(uint64_t when_ns) {
    struct timespec when = {.tv_sec = (time_t)(when_ns / NANOSECONDS), .tv_nsec = (long)(when_ns % NANOSECONDS)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) == EINTR)
        continue;
}

/* Sends every message no earlier than its time, and at once all that are late. */
static void send_on_schedule(struct latency_run *run, rd_kafka_t *handle, uint64_t start_ns,
                             struct samples *lateness) {
    const struct settings *settings = run->settings;
    rd_kafka_topic_t *topic = rd_kafka_topic_new(handle, settings->topic, NULL);
    uint8_t *payload = allocate((size_t)settings->size, 1);
    payload_fill_random(payload, (size_t)settings->size, 1);
    for (uint64_t i = 0; i < run->total; i++) {
        struct stamp stamp = {.intended_ns = start_ns + i * NANOSECONDS / (uint64_t)settings->rate, .number = i};
        uint64_t now = monotonic_ns();
        if (now < stamp.intended_ns) {
            sleep_until(stamp.intended_ns);
            now = monotonic_ns();
        }
        if (stamp.intended_ns >= run->measured_from_ns)
            samples_add(lateness, now - stamp.intended_ns);
        memcpy(payload, &stamp, sizeof stamp);
        int32_t partition = (int32_t)(i % (uint64_t)settings->partitions);
        while (rd_kafka_produce(topic, partition, RD_KAFKA_MSG_F_COPY, payload, (size_t)settings->size, NULL, 0,
                                NULL) != 0) {
            if (rd_kafka_last_error() != RD_KAFKA_RESP_ERR__QUEUE_FULL)
                fail("a message was refused: %s", rd_kafka_err2str(rd_kafka_last_error()));
            rd_kafka_poll(handle, 1);
        }
        rd_kafka_poll(handle, 0);
    }
    free(payload);
    rd_kafka_topic_destroy(topic);
}

static void report_latency(struct latency_run *run, struct samples *lateness, double send_seconds, double cpu_used) {
    samples_sort(&run->latencies);
    samples_sort(lateness);
    json_begin();
    json_count("messages", run->latencies.count);
    json_count("lost", 0);
    json_number("p50_ms", samples_percentile_ms(&run->latencies, 50));
    json_number("p90_ms", samples_percentile_ms(&run->latencies, 90));
    json_number("p99_ms", samples_percentile_ms(&run->latencies, 99));
    json_number("p999_ms", samples_percentile_ms(&run->latencies, 99.9));
    json_number("max_ms", samples_percentile_ms(&run->latencies, 100));
    json_number("achieved_rate", (double)run->total / send_seconds);
    /* How late the sending itself was: the client's share of the latency above. */
    json_number("send_late_p50_ms", samples_percentile_ms(lateness, 50));
    json_number("send_late_p99_ms", samples_percentile_ms(lateness, 99));
    json_number("client_cpu_s", cpu_used);
    json_end();
}

int run_latency(const struct settings *settings) {
    struct latency_run run = {.settings = settings};
    double duration = settings->warmup_seconds + settings->max_seconds;
    run.total = (uint64_t)(duration * (double)settings->rate);
    run.seen = allocate(run.total, 1);
    rd_kafka_t *handle = latency_producer(settings);
    run.consumer = consumer_new(settings, 0, on_latency_message, &run);
    consumer_start(run.consumer);
    /* Let sleeps end on time, not up to 50 microseconds late. */
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
    double cpu_before = cpu_seconds();
    uint64_t start_ns = monotonic_ns() + NANOSECONDS / 10;
    run.measured_from_ns = start_ns + (uint64_t)(settings->warmup_seconds * (double)NANOSECONDS);
    pthread_t thread;
    if (pthread_create(&thread, NULL, consume_until_stopped, &run))
        fail("cannot start a thread");
    struct samples lateness = {0};
    send_on_schedule(&run, handle, start_ns, &lateness);
    /* The last message's own interval belongs to the time, or a rate kept exactly would read too high. */
    double send_seconds = seconds_between(start_ns, monotonic_ns() + NANOSECONDS / (uint64_t)settings->rate);
    if (rd_kafka_flush(handle, STALL_SECONDS * 1000))
        fail("messages were not acknowledged within %d s of the last", STALL_SECONDS);
    uint64_t deadline = monotonic_ns() + STALL_SECONDS * NANOSECONDS;
    while (atomic_load_explicit(&run.received, memory_order_acquire) < run.total && monotonic_ns() < deadline)
        sleep_until(monotonic_ns() + NANOSECONDS / 100);
    atomic_store(&run.stop, 1);
    pthread_join(thread, NULL);
    uint64_t received = atomic_load(&run.received);
    if (received < run.total)
        fail("%" PRIu64 " of %" PRIu64 " acknowledged messages never arrived", run.total - received, run.total);
    report_latency(&run, &lateness, send_seconds, cpu_seconds() - cpu_before);
    rd_kafka_destroy(handle);
    consumer_destroy(run.consumer);
    free(run.seen);
    free(run.latencies.values);
    free(lateness.values);
    return 0;
}
