/* Sends prepared requests over several connections, a fixed number in flight on each, and checks every response.
 * Knows requests only as bytes to send and a function that checks the beginning of a response. */
#ifndef RAW_REPLAY_H
#define RAW_REPLAY_H

#include "measure.h"
#include "raw_wire.h"

/* Longer than what precedes the records of any response, with the longest topic name. */
#define RESPONSE_HEAD_BYTES 1024

struct replay;

/* Reads a response without its length; gives the bytes of records in it, where there are any. */
typedef uint64_t check_response(const struct replay *replay, struct reader *reader, int32_t correlation_id,
                                int32_t partition, int64_t offset);

struct replay {
    int16_t api;
    int16_t version;
    /* How many different requests there are: one for each partition, or for each member of a group. */
    int32_t partitions;
    /* For members: each has the partition with its number, starting over after the last one. */
    int32_t topic_partitions;
    /* For each of them: the request without its first 12 bytes. */
    struct writer *rests;
    /* Follows the rest in every request; may be empty. */
    const uint8_t *tail;
    size_t tail_bytes;
    /* Where in the rest an offset is to be written, and which: from first_offset in steps, below end_offset. */
    int writes_offset;
    size_t offset_place;
    int64_t first_offset;
    int64_t offset_step;
    int64_t end_offset;
    check_response *check;

    int64_t requests;
    int64_t in_flight;
    double max_seconds;

    /* Results. */
    uint64_t answered;
    uint64_t records_bytes;
    uint64_t started_ns;
    uint64_t ended_ns;
    struct samples latencies;
};

/* The sockets are connected and blocking; they stay open. */
void replay_run(struct replay *replay, const int *sockets, int64_t socket_count);

#endif
