/* The bytes that are sent: a fixed seed, so that every system is given the same ones. */
#ifndef PAYLOAD_H
#define PAYLOAD_H

#include <stddef.h>
#include <stdint.h>

enum payload_kind {
    /* Random throughout. */
    PAYLOAD_INCOMPRESSIBLE,
    /* The first half of each message is random, the second is one repeated letter. */
    PAYLOAD_HALF_COMPRESSIBLE,
};

/* Messages of one size, used in turn. */
struct payload_pool {
    uint8_t *bytes;
    size_t message_bytes;
    size_t message_count;
};

void payload_fill_random(uint8_t *target, size_t size, uint64_t seed);
struct payload_pool payload_pool_new(size_t message_bytes, enum payload_kind kind);

/* Valid for as long as the process runs. */
uint8_t *payload_at(const struct payload_pool *pool, uint64_t number);

#endif
