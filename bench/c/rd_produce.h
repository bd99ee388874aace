/* A producer that sends a number of messages as fast as their acknowledgements allow. */
#ifndef RD_PRODUCE_H
#define RD_PRODUCE_H

#include <stdatomic.h>

#include "measure.h"
#include "payload.h"
#include "rd_client.h"

struct producer {
    const struct settings *settings;
    rd_kafka_t *handle;
    rd_kafka_topic_t *topic;
    struct payload_pool pool;
    uint64_t sent;
    uint64_t acknowledged;
    uint64_t first_send_ns;
    uint64_t last_acknowledgement_ns;
    /* Written by librdkafka's threads: one for each broker. */
    atomic_uint_fast64_t requests;
    atomic_uint_fast64_t round_trip_count;
    uint64_t *round_trips_ns;
};

/* The topic exists and has leaders when this returns. */
struct producer *producer_new(const struct settings *settings);

/* Sends until the count or the time is reached and waits for every acknowledgement. */
void producer_run(struct producer *producer);
void producer_destroy(struct producer *producer);

#endif
