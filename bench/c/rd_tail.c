/* Produces while several consumers, each a client of its own, follow the end of the topic. */
#include <pthread.h>
#include <stdlib.h>

#include "measure.h"
#include "rd_client.h"
#include "rd_consume.h"
#include "rd_produce.h"

struct follower {
    pthread_t thread;
    struct tally tally;
};

static void *follow(void *opaque) {
    struct follower *follower = opaque;
    tally_run(&follower->tally, 0.0);
    return NULL;
}

static void start_followers(struct follower *followers, const struct settings *settings) {
    for (int64_t i = 0; i < settings->consumers; i++) {
        struct tally *tally = &followers[i].tally;
        tally->target = (uint64_t)settings->count;
        tally->message_bytes = (uint64_t)settings->size;
        tally->consumer = consumer_new(settings, 0, tally_message, tally);
        tally->started_ns = monotonic_ns();
        consumer_start(tally->consumer);
        if (pthread_create(&followers[i].thread, NULL, follow, &followers[i]))
            fail("cannot start a thread");
    }
}

int run_tail(const struct settings *settings) {
    struct producer *producer = producer_new(settings);
    struct follower *followers = allocate((size_t)settings->consumers, sizeof *followers);
    start_followers(followers, settings);
    double cpu_before = cpu_seconds();
    producer_run(producer);
    uint64_t slowest_ns = 0;
    for (int64_t i = 0; i < settings->consumers; i++) {
        pthread_join(followers[i].thread, NULL);
        if (followers[i].tally.last_message_ns > slowest_ns)
            slowest_ns = followers[i].tally.last_message_ns;
    }
    double cpu_used = cpu_seconds() - cpu_before;
    uint64_t bytes = producer->acknowledged * (uint64_t)settings->size;
    double seconds = seconds_between(producer->first_send_ns, producer->last_acknowledgement_ns);
    double slowest_seconds = seconds_between(producer->first_send_ns, slowest_ns);
    json_begin();
    json_throughput(producer->acknowledged, bytes, seconds);
    json_count("consumers", (uint64_t)settings->consumers);
    json_number("slowest_consumer_mb_s", (double)bytes / 1e6 / (slowest_seconds > 0.0 ? slowest_seconds : 1e-9));
    json_number("slowest_consumer_s", slowest_seconds);
    json_number("client_cpu_s", cpu_used);
    json_end();
    for (int64_t i = 0; i < settings->consumers; i++)
        consumer_destroy(followers[i].tally.consumer);
    producer_destroy(producer);
    free(followers);
    return 0;
}
