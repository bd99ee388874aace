#include "payload.h"

#include <string.h>

#include "measure.h"

/* Far more than a compression window or a batch, so that no message is a copy of one nearby. */
#define POOL_BYTES (8u << 20)
#define SEED 0x7461696c72616365ULL

static uint64_t next_random(uint64_t *state) {
    /* SplitMix64. */
    uint64_t mixed = (*state += 0x9e3779b97f4a7c15ULL);
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebULL;
    return mixed ^ (mixed >> 31);
}

void payload_fill_random(uint8_t *target, size_t size, uint64_t seed) {
    uint64_t state = SEED ^ seed;
    while (size > 0) {
        uint64_t word = next_random(&state);
        size_t part = size < sizeof word ? size : sizeof word;
        memcpy(target, &word, part);
        target += part;
        size -= part;
    }
}

struct payload_pool payload_pool_new(size_t message_bytes, enum payload_kind kind) {
    struct payload_pool pool = {.message_bytes = message_bytes};
    pool.message_count = message_bytes && message_bytes < POOL_BYTES ? POOL_BYTES / message_bytes : 1;
    pool.bytes = allocate(pool.message_count, message_bytes ? message_bytes : 1);
    payload_fill_random(pool.bytes, pool.message_count * message_bytes, 0);
    if (kind == PAYLOAD_HALF_COMPRESSIBLE)
        for (size_t i = 0; i < pool.message_count; i++) {
            uint8_t *message = pool.bytes + i * message_bytes;
            memset(message + message_bytes / 2, 't', message_bytes - message_bytes / 2);
        }
    return pool;
}

uint8_t *payload_at(const struct payload_pool *pool, uint64_t number) {
    return pool->bytes + number % pool->message_count * pool->message_bytes;
}
