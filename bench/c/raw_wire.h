/* Kafka's encoding, as far as the raw client needs it. Knows no sockets. Integers are big-endian. */
#ifndef RAW_WIRE_H
#define RAW_WIRE_H

#include <stddef.h>
#include <stdint.h>

enum api {
    API_PRODUCE = 0,
    API_FETCH = 1,
    API_METADATA = 3,
    API_OFFSET_COMMIT = 8,
    API_FIND_COORDINATOR = 10,
    API_JOIN_GROUP = 11,
    API_HEARTBEAT = 12,
    API_LEAVE_GROUP = 13,
    API_SYNC_GROUP = 14,
    API_API_VERSIONS = 18,
    API_CREATE_TOPICS = 19,
};

enum error_code {
    ERROR_NONE = 0,
    ERROR_UNKNOWN_TOPIC_OR_PARTITION = 3,
    ERROR_LEADER_NOT_AVAILABLE = 5,
    ERROR_NOT_LEADER_OR_FOLLOWER = 6,
    ERROR_COORDINATOR_LOAD_IN_PROGRESS = 14,
    ERROR_COORDINATOR_NOT_AVAILABLE = 15,
    ERROR_NOT_COORDINATOR = 16,
    ERROR_TOPIC_ALREADY_EXISTS = 36,
    ERROR_MEMBER_ID_REQUIRED = 79,
};

/* The length, API, version and correlation id of a request: what differs between two sends of the same. */
#define REQUEST_START_BYTES 12

/* Grows as it is written. */
struct writer {
    uint8_t *bytes;
    size_t size;
    size_t capacity;
};

void write_bytes(struct writer *writer, const void *bytes, size_t size);
void write_int8(struct writer *writer, int8_t value);
void write_int16(struct writer *writer, int16_t value);
void write_int32(struct writer *writer, int32_t value);
void write_int64(struct writer *writer, int64_t value);
void write_unsigned_varint(struct writer *writer, uint64_t value);
void write_compact_string(struct writer *writer, const char *text);
void put_int32(uint8_t *place, int32_t value);
void put_int64(uint8_t *place, int64_t value);

/* The first 12 bytes of a request whose size is known. */
void put_request_start(uint8_t *place, size_t request_bytes, int16_t api, int16_t version, int32_t correlation_id);

/* The rest of a flexible request header: client id and no tagged fields. */
void write_header_rest(struct writer *writer);

/* Reads past the end give zeros and set failed. */
struct reader {
    const uint8_t *bytes;
    size_t left;
    int failed;
};

int16_t read_int16(struct reader *reader);
int32_t read_int32(struct reader *reader);
int64_t read_int64(struct reader *reader);
uint64_t read_unsigned_varint(struct reader *reader);
const uint8_t *read_bytes(struct reader *reader, size_t size);
void skip_compact_string(struct reader *reader);
/* A copy, which the caller frees; empty for null. */
char *read_compact_string(struct reader *reader);
void skip_tagged_fields(struct reader *reader);

/* One uncompressed record batch of format 2 with null keys and random values, of batch_bytes in all, or up to two
 * fewer if no lengths add up to that. Its time is the present. NULL if that many records do not fit. */
uint8_t *record_batch_new(size_t batch_bytes, int32_t record_count, size_t *actual_bytes);

#define RECORD_BATCH_HEADER_BYTES 61

uint32_t crc32c(const uint8_t *bytes, size_t size);

#endif
