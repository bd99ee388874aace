/* A consumer of all partitions by assignment, without groups: counts, and checks sizes and offsets. */
#ifndef RD_CONSUME_H
#define RD_CONSUME_H

#include "rd_client.h"

struct consumer;

/* Called for each message, in the thread that calls consumer_poll. */
typedef void message_callback(const rd_kafka_message_t *message, void *opaque);

/* Fetches from explicit offsets on, so that nothing written after this returned is missed. */
struct consumer *consumer_new(const struct settings *settings, int from_beginning, message_callback *callback,
                              void *opaque);

/* Asks for records from now on. */
void consumer_start(struct consumer *consumer);

/* Serves what was fetched, waiting for up to timeout_ms for the first. */
void consumer_poll(struct consumer *consumer, int timeout_ms);

/* Makes the present consumer_poll return; only from within the callback. */
void consumer_yield(struct consumer *consumer);
void consumer_destroy(struct consumer *consumer);

/* Reads a number of messages. */
struct tally {
    struct consumer *consumer;
    uint64_t target;
    /* Of every message; 0 takes any. */
    uint64_t message_bytes;
    uint64_t messages;
    uint64_t bytes;
    uint64_t started_ns;
    uint64_t first_message_ns;
    uint64_t last_message_ns;
};

message_callback tally_message;

/* Reads until the target or, unless 0, the time is reached. */
void tally_run(struct tally *tally, double max_seconds);

#endif
